//! Statistics without I/O.

/// The value below or at which a share `q` (0 to 1) of the values lies, by nearest rank. `NaN`
/// without values.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    quantile_of_sorted(&sorted, q)
}

/// The middle value; the mean of the two middle ones of an even number. `NaN` without values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// `steps + 1` quantiles from the least to the greatest value: a distribution small enough to be
/// written down.
pub fn curve(values: &[f64], steps: usize) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    if sorted.is_empty() {
        return sorted;
    }
    (0..=steps).map(|step| quantile_of_sorted(&sorted, step as f64 / steps as f64)).collect()
}

fn quantile_of_sorted(sorted: &[f64], q: f64) -> f64 {
    if sorted.is_empty() {
        return f64::NAN;
    }
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// How evenly something was shared: the least share divided by the greatest. 1 is even; at 0 one
/// participant got nothing. `NaN` if all shares are 0.
pub fn evenness(shares: &[u64]) -> f64 {
    match (shares.iter().min(), shares.iter().max()) {
        (Some(&least), Some(&most)) if most > 0 => least as f64 / most as f64,
        _ => f64::NAN,
    }
}

/// The least share as a part of an even one.
pub fn least_of_even(shares: &[u64]) -> f64 {
    let even = shares.iter().sum::<u64>() as f64 / shares.len() as f64;
    shares.iter().min().map_or(f64::NAN, |&least| least as f64 / even)
}

/// A sample of evenly spaced values of a long series, in bounded memory. When it is full, every
/// second value is dropped, and from then on it takes half as many.
#[derive(Debug, Default)]
pub struct Thinned {
    kept: Vec<u64>,
    seen: u64,
    stride_log2: u32,
}

impl Thinned {
    const MOST: usize = 1 << 13;

    /// Takes a value, or skips it.
    pub fn push(&mut self, value: u64) {
        if self.seen.trailing_zeros() >= self.stride_log2 {
            if self.kept.len() == Self::MOST {
                let mut place = 0;
                self.kept.retain(|_| {
                    place += 1;
                    place % 2 == 1
                });
                self.stride_log2 += 1;
            }
            if self.seen.trailing_zeros() >= self.stride_log2 {
                self.kept.push(value);
            }
        }
        self.seen += 1;
    }

    /// The values kept.
    pub fn kept(&self) -> &[u64] {
        &self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occurred() {
        let values = [40.0, 10.0, 30.0, 20.0];
        assert_eq!(quantile(&values, 0.0), 10.0);
        assert_eq!(quantile(&values, 0.25), 10.0);
        assert_eq!(quantile(&values, 0.5), 20.0);
        assert_eq!(quantile(&values, 0.51), 30.0);
        assert_eq!(quantile(&values, 0.99), 40.0);
        assert_eq!(quantile(&values, 1.0), 40.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn the_99th_of_a_hundred_is_not_the_greatest() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(quantile(&values, 0.99), 99.0);
        assert_eq!(quantile(&values, 0.5), 50.0);
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn curves_go_from_the_least_to_the_greatest() {
        let values: Vec<f64> = (0..1000).rev().map(f64::from).collect();
        let curve = curve(&values, 4);
        assert_eq!(curve, [0.0, 249.0, 499.0, 749.0, 999.0]);
    }

    #[test]
    fn shares() {
        assert_eq!(evenness(&[9, 10, 10]), 0.9);
        assert_eq!(evenness(&[0, 5]), 0.0);
        assert!(evenness(&[0, 0]).is_nan());
        assert_eq!(least_of_even(&[5, 15, 10, 10]), 0.5);
    }

    #[test]
    fn a_thinned_series_is_evenly_spaced() {
        let mut thinned = Thinned::default();
        (0..100_000).for_each(|value| thinned.push(value));
        let kept = thinned.kept();
        assert!(kept.len() > Thinned::MOST / 2 && kept.len() <= Thinned::MOST);
        let step = kept[1] - kept[0];
        assert!(kept.windows(2).all(|pair| pair[1] - pair[0] == step));
        assert!(*kept.last().unwrap() >= 100_000 - step);
    }
}
