//! Timelines of the clients' calls and holds.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use super::super::Failed;
use super::super::text::{escape, time};
use crate::history::{Call, CallKind, End, by_key};

/// How many locks are drawn. Those that the failure is about come first.
const MOST_KEYS: usize = 3;
/// How many calls of a lock are drawn: those around the ones that show the failure.
const MOST_CALLS: usize = 60;

const LEFT: f64 = 90.0;
const WIDTH: f64 = 980.0;
const ROW: f64 = 22.0;
const BAR: f64 = 12.0;
const TOP: f64 = 8.0;

pub(super) fn figure(page: &mut String, failed: &Failed) {
    let mut keys = by_key(&failed.history);
    let is_shown = |calls: &[&Call]| {
        let is_of = |key: &str| calls.first().is_some_and(|call| call.key == key);
        let is_named = || calls.first().is_some_and(|call| failed.message.contains(&call.key));
        failed.shown_by.iter().any(|shown| is_of(&shown.key)) || is_named()
    };
    // Then those that were used last, because the failure ended the check.
    keys.sort_by_key(|calls| (!is_shown(calls), std::cmp::Reverse(calls.last().map(|call| last_known(call)))));
    for calls in keys.iter().take(MOST_KEYS) {
        timeline(page, &around(calls, &failed.shown_by), calls.len(), &failed.shown_by);
    }
    if keys.len() > MOST_KEYS {
        let _ = writeln!(page, "<p class=\"of\">… and {} more locks, in the JSON file</p>", keys.len() - MOST_KEYS);
    }
}

/// Returns the calls nearest to those that show the failure, or the last ones.
fn around<'a>(calls: &[&'a Call], shown_by: &[Call]) -> Vec<&'a Call> {
    let shown = calls.iter().rposition(|call| shown_by.contains(call));
    let end = shown.map_or(calls.len(), |last| (last + MOST_CALLS / 3).min(calls.len()));
    let begin = end.saturating_sub(MOST_CALLS);
    let early = calls[..begin].iter().filter(|call| shown_by.contains(call));
    early.chain(&calls[begin..end]).copied().collect()
}

fn timeline(page: &mut String, calls: &[&Call], of: usize, shown_by: &[Call]) {
    let begin = calls.iter().map(|call| call.asked).min().unwrap_or_default();
    let end = calls.iter().map(|call| last_known(call)).max().unwrap_or_default();
    let span = end.saturating_sub(begin).max(Duration::from_micros(1));
    let scale = Scale { begin, span };
    let rows = rows(calls);
    let lanes: usize = rows.values().map(Vec::len).sum();
    let height = TOP + ROW * lanes as f64 + 24.0;

    let key = calls.first().map(|call| call.key.as_str()).unwrap_or_default();
    let _ = write!(
        page,
        "<figure>\n<svg width=\"{w}\" height=\"{height}\" viewBox=\"0 0 {w} {height}\" role=\"img\">\n\
         <title>Holders of {}</title>\n",
        escape(key),
        w = LEFT + WIDTH + 20.0,
    );
    for tick in 0..=5 {
        let x = LEFT + WIDTH * f64::from(tick) / 5.0;
        let at = begin + span.mul_f64(f64::from(tick) / 5.0);
        let bottom = height - 20.0;
        let _ = writeln!(page, "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>");
        let label = time(at.as_secs_f64() * 1e3);
        let _ = writeln!(page, "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>", height - 6.0);
    }
    let mut y = TOP + ROW / 2.0;
    for (client, lanes) in &rows {
        let _ = writeln!(page, "<text class=\"name\" x=\"8\" y=\"{:.1}\">client {client}</text>", y + 4.0);
        for lane in lanes {
            for call in lane {
                draw(page, call, &scale, y, shown_by.contains(call));
            }
            y += ROW;
        }
    }
    let some = if calls.len() < of { format!("{} of {of} calls. ", calls.len()) } else { String::new() };
    let _ = write!(
        page,
        "</svg>\n<figcaption>Lock <code>{}</code>. {some}Thin line: waiting for the answer. \
         Filled: held for certain, with the token. Outlined: until the release was answered, dashed if the end is \
         unknown. Diamond: busy. Circle: not granted. Square: a write, or what was left. Upright: a request to the \
         store, such as a renewal, dashed without an answer. Red: the calls that show the failure.\
         </figcaption>\n</figure>\n",
        escape(key)
    );
}

/// Puts overlapping calls of one client below each other.
fn rows<'a>(calls: &[&'a Call]) -> BTreeMap<usize, Vec<Vec<&'a Call>>> {
    let mut rows: BTreeMap<usize, Vec<Vec<&Call>>> = BTreeMap::new();
    for call in calls {
        let lanes = rows.entry(call.client).or_default();
        let free = lanes.iter_mut().find(|lane| lane.last().is_none_or(|last| last_known(last) <= call.asked));
        match free {
            Some(lane) => lane.push(call),
            None => lanes.push(vec![call]),
        }
    }
    rows
}

/// Returns the last moment of a call in the history.
fn last_known(call: &Call) -> Duration {
    match &call.what {
        CallKind::Granted { end: End::Released { answered, .. }, .. } => *answered,
        CallKind::Granted { until, .. } => *until,
        _ => call.answered.unwrap_or(call.asked),
    }
}

struct Scale {
    begin: Duration,
    span: Duration,
}

impl Scale {
    fn x(&self, moment: Duration) -> f64 {
        LEFT + WIDTH * moment.saturating_sub(self.begin).as_secs_f64() / self.span.as_secs_f64()
    }
}

fn draw(page: &mut String, call: &Call, scale: &Scale, y: f64, bad: bool) {
    let class = if bad { "call bad" } else { "call" };
    let _ = write!(page, "<g class=\"{class}\"><title>{}</title>", escape(&call.to_string()));
    let asked = scale.x(call.asked);
    let answered = call.answered.map_or(LEFT + WIDTH, |answered| scale.x(answered));
    let line = if call.answered.is_some() { "wait" } else { "wait unknown" };
    let _ = write!(page, "<line class=\"{line}\" x1=\"{asked:.1}\" y1=\"{y}\" x2=\"{answered:.1}\" y2=\"{y}\"/>");
    match &call.what {
        CallKind::Granted { token, until, end } => {
            let (top, until) = (y - BAR / 2.0, scale.x(*until));
            let width = (until - answered).max(2.0);
            let (ended, class) = match end {
                End::Released { answered, .. } => (scale.x(*answered), "tail"),
                End::Open => (LEFT + WIDTH, "tail"),
                End::Unknown | End::Lost => ((until + 24.0).min(LEFT + WIDTH + 16.0), "tail unknown"),
            };
            let tail = (ended - until).max(0.0);
            let _ = write!(
                page,
                "<rect class=\"{class}\" x=\"{until:.1}\" y=\"{top}\" width=\"{tail:.1}\" height=\"{BAR}\"/>\
                 <rect class=\"hold\" x=\"{answered:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"{BAR}\"/>",
            );
            // If it fits.
            if width > 8.0 * token.to_string().len() as f64 {
                let _ = write!(
                    page,
                    "<text class=\"token\" x=\"{:.1}\" y=\"{:.1}\">{token}</text>",
                    answered + 3.0,
                    y + 4.0
                );
            }
        }
        CallKind::Busy | CallKind::GaveWay => {
            let _ = write!(page, "<path class=\"mark\" d=\"M{answered:.1} {:.1}l5 5l-5 5l-5 -5z\"/>", y - 5.0);
        }
        CallKind::NotGranted => {
            let _ = write!(page, "<circle class=\"mark\" cx=\"{answered:.1}\" cy=\"{y}\" r=\"4\"/>");
        }
        CallKind::Sent { answer, .. } => {
            let class = if answer.is_some() { "sent" } else { "sent unknown" };
            let (top, bottom) = (y - BAR / 2.0, y + BAR / 2.0);
            let _ = write!(page, "<path class=\"{class}\" d=\"M{asked:.1} {top:.1}V{bottom:.1}\"/>");
        }
        CallKind::Wrote { .. } | CallKind::Left { .. } => {
            let _ = write!(
                page,
                "<rect class=\"mark\" x=\"{:.1}\" y=\"{:.1}\" width=\"7\" height=\"7\"/>",
                answered - 3.5,
                y - 3.5
            );
        }
    }
    page.push_str("</g>\n");
}
