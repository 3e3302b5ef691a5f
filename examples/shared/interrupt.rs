//! Ctrl-C.

use std::future::pending;
use std::process::exit;

use tokio::signal::ctrl_c;
use tokio::sync::watch;

/// The exit code of a program that Ctrl-C has ended, as a shell reports it.
pub(crate) const INTERRUPTED: u8 = 130;

/// Whether Ctrl-C was pressed. Clones share it.
#[derive(Clone, Debug)]
pub struct Interrupt(watch::Receiver<bool>);

impl Interrupt {
    /// Takes over Ctrl-C. From now on the first one no longer ends this process; a second one does.
    #[must_use]
    pub fn listen() -> Self {
        let (sender, receiver) = watch::channel(false);
        tokio::spawn(async move {
            if ctrl_c().await.is_ok() {
                sender.send_replace(true);
                eprintln!("stopping; press Ctrl-C again to end at once");
                let _ = ctrl_c().await;
                exit(INTERRUPTED.into());
            }
        });
        Self(receiver)
    }

    /// Whether it was pressed.
    #[must_use]
    pub fn is_pressed(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it is pressed.
    pub async fn pressed(&self) {
        if self.0.clone().wait_for(|pressed| *pressed).await.is_err() {
            // This process has no Ctrl-C.
            pending::<()>().await;
        }
    }
}
