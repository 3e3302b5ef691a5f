//! Watches the child processes of an example, one of which may fall asleep.

use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::{Children, Failure, Interrupt, Message};

/// Child processes whose events are printed with the time since the start.
#[derive(Debug)]
pub struct Supervision<R> {
    /// The processes.
    pub children: Children<R>,
    start: Instant,
    /// The child that is asleep, and what it does when it wakes up.
    sleeper: Option<(String, &'static str)>,
}

impl<R: DeserializeOwned + Send + 'static> Supervision<R> {
    /// Starts to watch the children. The printed times count from now.
    #[must_use]
    pub fn new(children: Children<R>) -> Self {
        Self { children, start: Instant::now(), sleeper: None }
    }

    /// Returns the next report and the name of its child; `None` when all children have ended. The
    /// sleeper is woken when no other child is left. At Ctrl-C all children are stopped.
    ///
    /// # Errors
    /// As [`Children::next`].
    pub async fn next_report(&mut self, interrupt: &Interrupt) -> Result<Option<(String, R)>, Failure> {
        while let Some((name, message)) = self.children.next_until(interrupt).await? {
            match message {
                Message::Report(report) => return Ok(Some((name, report))),
                // Without locks, the others may have done all the work before this one fell asleep.
                Message::Ended if self.children.running() == 1 => self.wake().await?,
                Message::Ended => {}
            }
        }
        Ok(None)
    }

    /// Freezes a child until [`wake`](Self::wake). `late_act` is what it does then, for the output.
    ///
    /// # Errors
    /// As [`Children::freeze`].
    pub fn put_to_sleep(&mut self, name: &str, late_act: &'static str) -> Result<(), Failure> {
        self.children.freeze(name, true)?;
        self.sleeper = Some((name.to_owned(), late_act));
        Ok(())
    }

    /// Wakes the sleeper, if there is one, with the order to continue.
    ///
    /// # Errors
    /// If the child has ended.
    pub async fn wake(&mut self) -> Result<(), Failure> {
        let Some((name, late_act)) = self.sleeper.take() else { return Ok(()) };
        // A stop has continued it already.
        if self.children.is_stopping() {
            return Ok(());
        }
        self.print(&format!("{name} WAKES UP, and {late_act}"));
        self.children.send(&name, &()).await?;
        self.children.freeze(&name, false)
    }

    /// Prints an event.
    pub fn print(&self, what: &str) {
        print_event(self.start, what);
    }
}

/// Prints an event with the time since the start.
pub fn print_event(start: Instant, what: &str) {
    println!("{:8.3} s  {what}", start.elapsed().as_secs_f64());
}
