//! A recording as a picture. The same recording always gives the same picture.

use std::fmt::Write as _;

use crate::{A, B, Hold, Recording, seconds};

const WIDTH: f64 = 880.0;
const HEIGHT: f64 = 292.0;
/// Where time begins and ends.
const LEFT: f64 = 90.0;
const RIGHT: f64 = 862.0;
/// The middle of the lane of each process, and of the gap between them.
const LANES: [(&str, f64); 2] = [(A, 86.0), (B, 166.0)];
const MIDDLE: f64 = 126.0;
/// The height of a bar.
const BAR: f64 = 36.0;
const AXIS: f64 = 206.0;

const STYLE: &str = "    text { font: 13px system-ui, sans-serif; fill: #1f2328 }
    .title { font-size: 16px; font-weight: 600 }
    .small { font-size: 12px; fill: #59636e }
    .token { font: 11px ui-monospace, monospace; fill: #ffffff }
    .alarm { fill: #cf222e; font-weight: 600 }
    .page { fill: #ffffff }
    .hold { fill: #0969da }
    .wait { fill: #b6c2cf }
    .orphan { fill: none; stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 4 3 }
    .pass { stroke: #1a7f37; stroke-width: 1.5; fill: none }
    .head { fill: #1a7f37 }
    .passed { font-size: 12px; fill: #1a7f37 }
    .axis { stroke: #d1d9e0 }
    @media (prefers-color-scheme: dark) {
      text { fill: #f0f6fc }
      .small { fill: #9198a1 }
      .alarm { fill: #ff7b72 }
      .page { fill: #0d1117 }
      .hold { fill: #1f6feb }
      .wait { fill: #4b5563 }
      .orphan { stroke: #ff7b72 }
      .pass { stroke: #3fb950 }
      .head, .passed { fill: #3fb950 }
      .axis { stroke: #3d444d }
    }
";

/// Draws a recording as SVG.
pub(crate) fn picture(recording: &Recording) -> String {
    let key = &recording.key;
    let mut picture = Picture::new(recording.holds.last().map_or(1.0, |last| seconds(last.ends)));
    picture.line(&format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n  \
         <title>How the lock {key} passes between two processes</title>\n  \
         <!-- A real run, recorded and drawn by the example program hand-over. -->\n  <style>\n{STYLE}  </style>"
    ));
    picture.line(&format!("  <rect class=\"page\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"6\"/>"));
    let title = format!("One lock, two processes: key {key}, leases of {} s", recording.lease_ms as f64 / 1000.0);
    picture.text("title", (16.0, 30.0), "start", &title);
    for (name, y) in LANES {
        picture.text("", (16.0, y + 4.5), "start", &format!("process {name}"));
    }
    picture.axis();
    recording.holds.iter().for_each(|hold| picture.hold(hold));
    for pair in recording.holds.windows(2) {
        picture.pass(&pair[0], &pair[1]);
    }
    picture.legend(&format!("a real run on {}", recording.server));
    picture.line("</svg>");
    picture.svg
}

struct Picture {
    svg: String,
    /// How many seconds it shows.
    length: f64,
}

impl Picture {
    fn new(length: f64) -> Self {
        Self { svg: String::new(), length }
    }

    fn x(&self, at: f64) -> f64 {
        LEFT + at / self.length * (RIGHT - LEFT)
    }

    fn line(&mut self, text: &str) {
        self.svg.push_str(text);
        self.svg.push('\n');
    }

    fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: &str, text: &str) {
        let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
        let anchor = if anchor == "start" { String::new() } else { format!(" text-anchor=\"{anchor}\"") };
        let _ = writeln!(self.svg, "  <text{class} x=\"{x:.1}\" y=\"{y:.1}\"{anchor}>{text}</text>");
    }

    fn bar(&mut self, class: &str, (from, to): (f64, f64), middle: f64, height: f64, radius: u8) {
        let (x, y, width) = (self.x(from), middle - height / 2.0, self.x(to) - self.x(from));
        let _ = writeln!(
            self.svg,
            "  <rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"{radius}\"/>"
        );
    }

    fn axis(&mut self) {
        self.line(&format!("  <path class=\"axis\" d=\"M{LEFT:.1} {AXIS:.1}H{RIGHT:.1}\"/>"));
        let mut second = 0.0;
        while second <= self.length {
            let x = self.x(second);
            self.line(&format!("  <path class=\"axis\" d=\"M{x:.1} {AXIS:.1}v5\"/>"));
            self.text("small", (x, AXIS + 20.0), "middle", &format!("{second:.0} s"));
            second += 1.0;
        }
    }

    fn hold(&mut self, hold: &Hold) {
        let (waits, holds, ends) = (seconds(hold.waits), seconds(hold.holds), seconds(hold.ends));
        let middle = lane(&hold.process);
        self.bar("wait", (waits, holds), middle, 7.0, 0);
        self.bar("hold", (holds, ends), middle, BAR, 3);
        let digits = hold.token.to_string();
        let room = self.x(ends) - self.x(holds) - 8.0;
        let is_short = digits.len() as f64 * 6.7 > room;
        let token = if is_short { format!("…{}", &digits[digits.len().saturating_sub(5)..]) } else { digits };
        self.text("token", (self.x(holds) + 5.0, middle + 4.0), "start", &token);
    }

    /// The lock passes from one hold to the next one.
    fn pass(&mut self, from: &Hold, to: &Hold) {
        let (ends, holds) = (seconds(from.ends), seconds(to.holds));
        let (above, below) = (lane(&from.process), lane(&to.process));
        let x = self.x(holds);
        if from.is_killed {
            self.bar("orphan", (ends, holds), above, BAR, 3);
            self.text("alarm", (self.x(ends), above - BAR / 2.0 - 6.0), "start", "✕ killed");
            let expiry = format!("expires after {:.2} s", holds - ends);
            self.text("small", ((self.x(ends) + x) / 2.0, above + 4.0), "middle", &expiry);
        }
        let sign = if below > above { 1.0 } else { -1.0 };
        let (begin, end) = (above + sign * BAR / 2.0, below - sign * BAR / 2.0);
        self.line(&format!("  <path class=\"pass\" d=\"M{x:.1} {begin:.1}V{:.1}\"/>", end - sign * 8.0));
        self.line(&format!("  <path class=\"head\" d=\"M{x:.1} {:.1}l-4 {:.1}h8z\"/>", end - sign, -sign * 7.0));
        if !from.is_killed {
            self.text("passed", (x + 8.0, MIDDLE + 4.0), "start", &format!("{:.1} ms", (holds - ends) * 1e3));
        }
    }

    fn legend(&mut self, source: &str) {
        let y = HEIGHT - 42.0;
        self.line(&format!("  <rect class=\"hold\" x=\"16\" y=\"{}\" width=\"22\" height=\"12\" rx=\"2\"/>", y - 10.0));
        self.text("", (44.0, y), "start", "holds the lock, with its fencing token");
        self.line(&format!("  <rect class=\"wait\" x=\"320\" y=\"{}\" width=\"22\" height=\"7\"/>", y - 8.0));
        self.text("", (348.0, y), "start", "waits in the queue");
        self.line(&format!("  <path class=\"pass\" d=\"M528 {}h22\"/>", y - 4.0));
        self.text("", (556.0, y), "start", "one write: releases and grants");
        self.text("small", (16.0, HEIGHT - 16.0), "start", source);
    }
}

fn lane(process: &str) -> f64 {
    LANES.iter().find(|(name, _)| *name == process).map_or(MIDDLE, |(_, middle)| *middle)
}
