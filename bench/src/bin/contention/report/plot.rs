//! Plots as SVG.

use std::path::Path;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::markdown::number;
use super::{Curve, Figure, Results};
use crate::Outcome;
use crate::locks::Contender;

const SIZE: (u32, u32) = (820, 420);
const OURS: RGBColor = RGBColor(0x1f, 0x77, 0xb4);
const OURS_POSTGRES: RGBColor = RGBColor(0x17, 0xbe, 0xcf);
const OTHERS: [RGBColor; 8] = [
    RGBColor(0xd6, 0x27, 0x28),
    RGBColor(0xff, 0x7f, 0x0e),
    RGBColor(0x94, 0x67, 0xbd),
    RGBColor(0x7f, 0x7f, 0x7f),
    RGBColor(0x2c, 0xa0, 0x2c),
    RGBColor(0x8c, 0x56, 0x4b),
    RGBColor(0xe3, 0x77, 0xc2),
    RGBColor(0xbc, 0xbd, 0x22),
];

/// Draws all plots for which there are figures; returns the names of the files.
pub fn draw(results: &Results, folder: &Path) -> Outcome<Vec<String>> {
    let mut drawn = Vec::new();
    let figure = |id: &str| results.figures.iter().find(|figure| figure.id == id && figure.failure.is_none());
    if let Some(figure) = figure("B2") {
        for what in distinct(&figure.curves) {
            let file = format!("{}.svg", what.replace(' ', "-"));
            let title = format!("Hand-over between processes, {what} (4 processes × 4 waiters)");
            let curves: Vec<_> = figure.curves.iter().filter(|curve| curve.what == what).collect();
            distribution(&folder.join(&file), &title, &curves)?;
            drawn.push(file);
        }
    }
    let plots = [
        ("B4", "evenness", "fairness", "Turns of the waiter with the fewest / with the most (1 is fair)", false),
        ("B5", "acquisitions", "one-process", "Acquisitions per second, 64 waiters in one process", true),
        ("B6", "acquisitions", "four-processes", "Acquisitions per second, 4 processes × 16 waiters", true),
        ("B8", "commands", "waiting", "Commands per second of 1,000 waiting tasks", true),
    ];
    for (id, what, name, title, logarithmic) in plots {
        let Some(figure) = figure(id) else { continue };
        let file = format!("{name}.svg");
        bars(&folder.join(&file), title, &values(figure, what), logarithmic)?;
        drawn.push(file);
    }
    Ok(drawn)
}

fn distinct(curves: &[Curve]) -> Vec<String> {
    let mut names: Vec<_> = curves.iter().map(|curve| curve.what.clone()).collect();
    names.dedup();
    names.sort_unstable();
    names.dedup();
    names
}

/// Bars of all measurements whose name begins so.
fn values(figure: &Figure, what: &str) -> Vec<(String, f64)> {
    let chosen = figure.measurements.iter().filter(|one| one.what.starts_with(what) && one.median.is_finite());
    chosen.map(|one| (format!("{}{}", one.who, one.what.trim_start_matches(what)), one.median)).collect()
}

/// The share of hand-overs that took at most a given time.
fn distribution(file: &Path, title: &str, curves: &[&Curve]) -> Outcome<()> {
    let all = || curves.iter().flat_map(|curve| curve.quantiles.iter().copied()).filter(|value| *value > 0.0);
    let (least, greatest) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
    if greatest <= 0.0 {
        return Ok(());
    }
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(50)
        .build_cartesian_2d(Decades::over(least, greatest), 0.0..100.0)?;
    chart
        .configure_mesh()
        .x_desc("milliseconds, logarithmic")
        .y_desc("% of the hand-overs")
        .light_line_style(WHITE.mix(0.0))
        .draw()?;
    for (place, curve) in curves.iter().enumerate() {
        let color = color(&curve.who, place);
        let steps = (curve.quantiles.len().max(2) - 1) as f64;
        let points = curve.quantiles.iter().enumerate().map(|(step, value)| (*value, 100.0 * step as f64 / steps));
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))?
            .label(&curve.who)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(3)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(root.present()?)
}

/// One bar each, with its value beside it.
fn bars(file: &Path, title: &str, values: &[(String, f64)], logarithmic: bool) -> Outcome<()> {
    const ROW: i32 = 34;
    const LEFT: i32 = 250;
    const WIDE: f64 = 460.0;
    let height = 60 + ROW * values.len() as i32;
    let root = SVGBackend::new(file, (SIZE.0, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let scale = if logarithmic { ", logarithmic" } else { "" };
    root.draw(&Text::new(format!("{title}{scale}"), (16, 14), ("sans-serif", 18)))?;
    let greatest = values.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    for (place, (name, value)) in values.iter().enumerate() {
        let top = 48 + ROW * place as i32;
        let share =
            if logarithmic { value.max(1.0).log10() / greatest.max(10.0).log10() } else { value / greatest.max(1.0) };
        let right = LEFT + (WIDE * share) as i32;
        let color = color(name, place);
        root.draw(&Text::new(name.clone(), (16, top + 4), ("sans-serif", 14)))?;
        root.draw(&Rectangle::new([(LEFT, top), (right.max(LEFT + 1), top + ROW - 10)], color.filled()))?;
        root.draw(&Text::new(number(*value), (right + 8, top + 4), ("sans-serif", 14)))?;
    }
    Ok(root.present()?)
}

fn color(who: &str, place: usize) -> RGBColor {
    // The name on PostgreSQL begins with the other one.
    if who.starts_with(Contender::OursPostgres.name()) {
        OURS_POSTGRES
    } else if who.starts_with(Contender::Ours.name()) {
        OURS
    } else {
        OTHERS[place % OTHERS.len()]
    }
}

/// A logarithmic axis with labels at 1, 2 and 5 of each decade.
struct Decades {
    low: f64,
    high: f64,
}

impl Decades {
    fn over(least: f64, greatest: f64) -> Self {
        Self { low: least * 0.8, high: greatest * 1.25 }
    }
}

impl Ranged for Decades {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let share = (value.max(self.low).ln() - self.low.ln()) / (self.high.ln() - self.low.ln());
        from + (f64::from(to - from) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        let decades = (self.low.log10().floor() as i32)..=(self.high.log10().ceil() as i32);
        let points = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|first| first * 10_f64.powi(decade)));
        points.filter(|point| (self.low..=self.high).contains(point)).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Decades {
    fn format(value: &f64) -> String {
        format!("{value}")
    }
}
