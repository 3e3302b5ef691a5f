//! The durations of grants and hand-overs, as cumulative curves over a logarithmic axis.

use std::fmt::Write;

use super::super::text::{escape, time};
use super::super::{Backend, Checked};

/// How many backends have their own colour; see `style.css`.
const COLOURS: usize = 8;

const LEFT: f64 = 44.0;
const TOP: f64 = 10.0;
const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 200.0;
/// From a microsecond to a hundred seconds.
const DECADES: u32 = 8;

/// Reads samples of a check.
type Samples = fn(&Checked) -> &[f64];

pub(super) fn section(page: &mut String, backends: &[Backend]) {
    page.push_str(
        "<h2>Durations</h2>\n<p>From the histories of all checks that were not refused, including those with faults and slow stores. \
         This shows the backend under the suite, and is not a benchmark.</p>\n<div class=\"plots\">\n",
    );
    plot(page, backends, "Acquire: from the request to the grant of a free lock", |check| &check.measures.acquire_us);
    plot(page, backends, "Hand-over: from the beginning of a release to the grant to a waiter", |check| {
        &check.measures.hand_over_us
    });
    page.push_str("</div>\n");
}

fn plot(page: &mut String, backends: &[Backend], title: &str, samples: Samples) {
    let (right, bottom) = (LEFT + WIDTH, TOP + HEIGHT);
    let title = escape(title);
    let _ = write!(
        page,
        "<figure>\n<figcaption>{title}</figcaption>\n<svg width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} {h}\" role=\"img\">\n\
         <title>{title}</title>\n",
        w = right + 24.0,
        h = bottom + 26.0,
    );
    for decade in 0..=DECADES {
        let x = LEFT + WIDTH * f64::from(decade) / f64::from(DECADES);
        let label = time(10_f64.powi(decade.cast_signed() - 3)).replace(".0", "");
        let _ = writeln!(
            page,
            "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
            bottom + 16.0,
        );
    }
    for percent in [0, 50, 100] {
        let y = bottom - HEIGHT * f64::from(percent) / 100.0;
        let _ = writeln!(
            page,
            "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{percent} %</text>",
            LEFT - 6.0,
            y + 4.0,
        );
    }
    let all: Vec<Vec<f64>> = backends.iter().map(|backend| of_backend(backend, samples)).collect();
    for (number, samples) in all.iter().enumerate().filter(|(_, samples)| !samples.is_empty()) {
        let _ = writeln!(page, "<path class=\"curve k{}\" d=\"{}\"/>", number % COLOURS, curve(samples));
    }
    page.push_str("</svg>\n<table>\n<thead><tr><th>Backend</th><th>n</th><th>half</th><th>95 %</th><th>99 %</th></tr></thead>\n<tbody>\n");
    for (number, (backend, samples)) in backends.iter().zip(&all).enumerate() {
        let _ = write!(
            page,
            "<tr><th scope=\"row\"><i class=\"k{}\"></i>{}</th><td>{}</td>",
            number % COLOURS,
            escape(&backend.name),
            samples.len(),
        );
        for percent in [50, 95, 99] {
            let value = quantile(samples, percent).map(|micros| time(micros / 1e3)).unwrap_or_default();
            let _ = write!(page, "<td>{value}</td>");
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody>\n</table>\n</figure>\n");
}

fn of_backend(backend: &Backend, samples: Samples) -> Vec<f64> {
    let mut all: Vec<f64> = backend.checks.iter().flat_map(samples).copied().collect();
    all.sort_by(f64::total_cmp);
    all
}

/// Returns the least sample that `percent` percent of the sorted samples do not exceed.
fn quantile(sorted: &[f64], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.max(1) - 1).copied()
}

fn curve(sorted: &[f64]) -> String {
    let x = |micros: f64| LEFT + WIDTH * (micros.max(1.0).log10() / f64::from(DECADES)).min(1.0);
    let y = |share: f64| TOP + HEIGHT * (1.0 - share);
    let first = sorted.first().copied().unwrap_or_default();
    let mut path = format!("M{:.1} {:.1}", x(first), y(0.0));
    // At most as many points as the plot is wide.
    let step = sorted.len().div_ceil(WIDTH as usize).max(1);
    let last = sorted.len() - 1;
    for (number, sample) in sorted.iter().enumerate().filter(|(number, _)| number % step == 0 || *number == last) {
        let _ = write!(path, "L{:.1} {:.1}", x(*sample), y((number + 1) as f64 / sorted.len() as f64));
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles() {
        let sorted: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!([50, 95, 99].map(|percent| quantile(&sorted, percent)), [Some(100.0), Some(190.0), Some(198.0)]);
        assert_eq!((quantile(&[], 50), quantile(&[7.0], 50)), (None, Some(7.0)));
    }

    #[test]
    fn curves_rise_from_nothing_to_all() {
        assert_eq!(curve(&[10.0, 100.0]), "M104.0 210.0L104.0 110.0L164.0 10.0");
    }
}
