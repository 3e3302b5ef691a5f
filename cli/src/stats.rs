//! Percentiles of durations. No I/O.

use std::time::Duration;

/// Returns the smallest duration that is not exceeded by `percent` of them; zero of none.
pub(crate) fn percentile(durations: &mut [Duration], percent: usize) -> Duration {
    durations.sort_unstable();
    let rank = (durations.len() * percent).div_ceil(100);
    durations.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let ms = Duration::from_millis;
        for (durations, percent, expected) in [
            (vec![], 50, 0),
            (vec![7], 50, 7),
            (vec![7], 99, 7),
            (vec![4, 1, 3, 2], 50, 2),
            (vec![4, 1, 3, 2], 99, 4),
            ((1..=100).rev().collect(), 99, 99),
        ] {
            let mut durations: Vec<_> = durations.into_iter().map(ms).collect();
            assert_eq!(percentile(&mut durations, percent), ms(expected));
        }
    }
}
