//! A trace as a picture.

use std::fmt::Write as _;

use crate::tree::{Kind, Row, Trace};

const WIDTH: f64 = 880.0;
/// Where time begins and ends.
const LEFT: f64 = 330.0;
const RIGHT: f64 = 862.0;
const TOP: f64 = 52.0;
const LINE: f64 = 22.0;

const STYLE: &str = "    text { font: 13px system-ui, sans-serif; fill: #1f2328 }
    .title { font-size: 16px; font-weight: 600 }
    .small { font-size: 12px; fill: #59636e }
    .page { fill: #ffffff }
    .application { fill: #8c959f }
    .wait { fill: #bf8700 }
    .hold { fill: #0969da }
    .driver { fill: #1a7f37 }
    .failed { fill: #cf222e }
    @media (prefers-color-scheme: dark) {
      text { fill: #f0f6fc }
      .small { fill: #9198a1 }
      .page { fill: #0d1117 }
      .hold { fill: #1f6feb }
      .driver { fill: #3fb950 }
      .failed { fill: #ff7b72 }
    }
";

/// Draws a trace as SVG.
pub(crate) fn picture(trace: &Trace) -> String {
    let rows = trace.rows();
    let length = rows.iter().map(|row| row.begins + row.took).fold(1.0, f64::max);
    let height = TOP + LINE * (rows.len() as f64 + 1.5);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n  \
         <title>An order through two services and MongoDB as a trace</title>\n  \
         <!-- A real run, drawn by the example program traces. -->\n  <style>\n{STYLE}  </style>\n  \
         <rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\" rx=\"6\"/>\n  \
         <text class=\"title\" x=\"16\" y=\"30\">One order, two services, their locks and MongoDB</text>\n"
    );
    for (number, row) in rows.iter().enumerate() {
        let y = TOP + LINE * number as f64;
        let (label, class) = (16.0 + 46.0 + 14.0 * row.depth as f64, class(row.kind));
        let x = |millis: f64| LEFT + millis / length * (RIGHT - LEFT);
        let (from, width) = (x(row.begins), (x(row.begins + row.took) - x(row.begins)).max(1.5));
        // Writing to a string does not fail.
        let _ = writeln!(
            svg,
            "  <text class=\"small\" x=\"16\" y=\"{:.1}\">{}</text><text x=\"{label:.1}\" y=\"{:.1}\">{}</text>\
             <rect class=\"{class}\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"12\" rx=\"2\"/>",
            y + 13.0,
            row.service,
            y + 13.0,
            shown(row),
            y + 3.0,
        );
    }
    let y = TOP + LINE * (rows.len() as f64 + 0.8);
    let _ =
        writeln!(svg, "  <text class=\"small\" x=\"{RIGHT}\" y=\"{y:.1}\" text-anchor=\"end\">{length:.1} ms</text>");
    svg + "</svg>\n"
}

/// Names are short, and have no character with a meaning in SVG.
fn shown(row: &Row<'_>) -> String {
    row.name.chars().filter(|c| !matches!(c, '<' | '>' | '&')).take(34).collect()
}

fn class(kind: Kind) -> &'static str {
    match kind {
        Kind::Application => "application",
        Kind::Wait => "wait",
        Kind::Hold => "hold",
        Kind::Driver => "driver",
        Kind::Failed => "failed",
    }
}
