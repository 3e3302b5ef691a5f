//! What a check reports besides its verdict.

use std::sync::{Arc, Mutex};

use crate::figures::Figures;
use crate::recorder::Recorder;

/// Shared by the clones of a context.
#[derive(Clone, Default)]
pub(crate) struct Findings(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    figures: Option<Figures>,
    history: Option<Recorder>,
}

impl Findings {
    /// Sets the figures of the check.
    pub(crate) fn set_figures(&self, figures: Figures) {
        self.0.lock().expect("not poisoned").figures = Some(figures);
    }

    pub(crate) fn figures(&self) -> Option<Figures> {
        self.0.lock().expect("not poisoned").figures.clone()
    }

    /// Sets the history for failures from now on, if it is not that of the context.
    pub(crate) fn set_history(&self, recorder: &Recorder) {
        self.0.lock().expect("not poisoned").history = Some(recorder.clone());
    }

    pub(crate) fn history(&self) -> Option<Recorder> {
        self.0.lock().expect("not poisoned").history.clone()
    }
}
