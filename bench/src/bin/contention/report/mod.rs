//! The results of a run: figures, and how they are written.

pub mod machine;
pub mod markdown;
pub mod plot;

use serde::Serialize;

use crate::stats;

/// Everything of a run.
#[derive(Debug, Serialize)]
pub struct Results {
    /// Where and with what it was measured.
    pub machine: machine::Machine,
    /// Whether rounds were shortened.
    pub quick: bool,
    /// In order.
    pub figures: Vec<Figure>,
}

/// One figure, with all that was measured for it.
#[derive(Debug, Serialize)]
pub struct Figure {
    /// `B1` to `B26`, `S2` to `S8`, `T1` to `T4`.
    pub id: String,
    /// What it is about.
    pub title: &'static str,
    /// The command that repeats it.
    pub command: String,
    /// What was measured, by contender.
    pub measurements: Vec<Measurement>,
    /// Distributions, for plots.
    pub curves: Vec<Curve>,
    /// Our values beside the targets.
    pub verdicts: Vec<Verdict>,
    /// What a reader should know.
    pub notes: Vec<String>,
    /// Why nothing was measured, if so.
    pub failure: Option<String>,
}

/// One value per round.
#[derive(Debug, Serialize)]
pub struct Measurement {
    /// Contender.
    pub who: String,
    /// What of it.
    pub what: String,
    /// Unit.
    pub unit: &'static str,
    /// In the order measured.
    pub rounds: Vec<f64>,
    /// Of the rounds.
    pub median: f64,
}

/// A distribution as evenly spaced quantiles, all rounds together.
#[derive(Debug, Serialize)]
pub struct Curve {
    /// Contender.
    pub who: String,
    /// What of it.
    pub what: String,
    /// Unit.
    pub unit: &'static str,
    /// From the least to the greatest.
    pub quantiles: Vec<f64>,
}

/// Ours and a target.
#[derive(Debug, Serialize)]
pub struct Verdict {
    /// What is judged.
    pub what: String,
    /// Our value.
    pub ours: f64,
    /// Its unit.
    pub unit: &'static str,
    /// The contender that it is compared with, and its value.
    pub reference: Option<(String, f64)>,
    /// Ours divided by the reference, if there is one.
    pub ratio: Option<f64>,
    /// The target, in words; `None` if none is set.
    pub target: Option<String>,
    /// Whether it is met, if there is one.
    pub reached: Option<bool>,
}

/// The side of a target on which it is met.
#[derive(Debug, Clone, Copy)]
pub enum Bound {
    /// At most.
    Most(f64),
    /// At least.
    Least(f64),
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::Most(limit) => value <= limit,
            Self::Least(limit) => value >= limit,
        }
    }

    fn words(self) -> String {
        match self {
            Self::Most(limit) => format!("≤ {limit}"),
            Self::Least(limit) => format!("≥ {limit}"),
        }
    }
}

impl Figure {
    /// With nothing in it yet.
    pub fn new(id: impl ToString, title: &'static str, quick: bool) -> Self {
        let id = id.to_string();
        let quick = if quick { " --quick" } else { "" };
        let command = format!("cargo run --release --bin contention -- --figures {id}{quick}");
        let (measurements, curves, verdicts, notes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { id, title, command, measurements, curves, verdicts, notes, failure: None }
    }

    /// Adds the value of one more round.
    pub fn push(&mut self, who: impl ToString, what: impl ToString, unit: &'static str, value: f64) {
        let (who, what) = (who.to_string(), what.to_string());
        let known = self.measurements.iter_mut().find(|known| known.who == who && known.what == what);
        match known {
            Some(known) => {
                known.rounds.push(value);
                known.median = stats::median(&known.rounds);
            }
            None => self.measurements.push(Measurement { who, what, unit, rounds: vec![value], median: value }),
        }
    }

    /// Adds a distribution.
    pub fn curve(&mut self, who: impl ToString, what: impl ToString, unit: &'static str, values: &[f64]) {
        let quantiles = stats::curve(values, 200);
        self.curves.push(Curve { who: who.to_string(), what: what.to_string(), unit, quantiles });
    }

    /// The median over the rounds; `NaN` if there are none.
    pub fn median(&self, who: impl ToString, what: &str) -> f64 {
        let who = who.to_string();
        let found = self.measurements.iter().find(|one| one.who == who && one.what == what);
        found.map_or(f64::NAN, |one| one.median)
    }

    /// Compares a value of ours with a limit.
    pub fn judge(&mut self, what: impl ToString, ours: f64, unit: &'static str, bound: Bound) {
        self.verdicts.push(Verdict {
            what: what.to_string(),
            ours,
            unit,
            reference: None,
            ratio: None,
            target: Some(format!("{} {unit}", bound.words()).trim_end().to_owned()),
            reached: Some(bound.holds(ours)),
        });
    }

    /// Shows a value of ours, beside another's if there is one, without a target.
    pub fn compare(
        &mut self,
        what: impl ToString,
        ours: f64,
        unit: &'static str,
        reference: impl Into<Option<(String, f64)>>,
    ) {
        let reference = reference.into();
        let ratio = reference.as_ref().map(|(_, theirs)| ours / theirs);
        self.verdicts.push(Verdict {
            what: what.to_string(),
            ours,
            unit,
            reference,
            ratio,
            target: None,
            reached: None,
        });
    }

    /// Compares the ratio of a value of ours to another's with a limit.
    pub fn judge_ratio(
        &mut self,
        what: impl ToString,
        ours: f64,
        unit: &'static str,
        (who, theirs): (String, f64),
        bound: Bound,
    ) {
        let ratio = ours / theirs;
        self.verdicts.push(Verdict {
            what: what.to_string(),
            ours,
            unit,
            target: Some(format!("{} × {who}", bound.words())),
            reference: Some((who, theirs)),
            ratio: Some(ratio),
            reached: Some(bound.holds(ratio)),
        });
    }

    /// Adds a remark once.
    pub fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_gather_by_contender_and_quantity() {
        let mut figure = Figure::new("B1", "a title", true);
        for value in [3.0, 1.0, 2.0] {
            figure.push("a", "p50", "ms", value);
            figure.push("b", "p50", "ms", 10.0 * value);
        }
        assert_eq!(figure.measurements.len(), 2);
        assert_eq!((figure.median("a", "p50"), figure.median("b", "p50")), (2.0, 20.0));
        assert!(figure.median("a", "p99").is_nan());
        assert!(figure.command.ends_with("--figures B1 --quick"));
    }

    #[test]
    fn verdicts() {
        let mut figure = Figure::new("B1", "a title", false);
        figure.judge_ratio("p50", 11.0, "ms", ("raw".to_owned(), 10.0), Bound::Most(1.1));
        figure.judge_ratio("rate", 11.0, "/s", ("peer".to_owned(), 10.0), Bound::Least(100.0));
        figure.judge("lost", 0.0, "", Bound::Most(0.0));
        figure.judge("nothing measured", f64::NAN, "", Bound::Most(1.0));
        figure.compare("without a target", 3.0, "ms", ("raw".to_owned(), 2.0));
        let reached: Vec<_> = figure.verdicts.iter().map(|verdict| verdict.reached).collect();
        assert_eq!(reached, [Some(true), Some(false), Some(true), Some(false), None]);
        assert_eq!(figure.verdicts[0].target.as_deref(), Some("≤ 1.1 × raw"));
        assert_eq!(figure.verdicts[4].ratio, Some(1.5));
    }
}
