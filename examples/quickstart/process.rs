//! One OS process per worker: the same desk, through pipes.

use std::process::Stdio;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Stdin};
use tokio::process::{ChildStdin, Command};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::desk::{Desk, Event, Hub};
use crate::{Arguments, Failure};

/// What a child says, a line each.
#[derive(Serialize, Deserialize)]
enum Message {
    Told(Event),
    Write { worker: String, resource: String, token: u64 },
}

/// The desk of a worker in a process of its own: it speaks on standard output and hears on standard
/// input.
pub(crate) struct PipeDesk(Mutex<BufReader<Stdin>>);

impl PipeDesk {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(BufReader::new(tokio::io::stdin())))
    }
}

fn say(message: &Message) {
    println!("{}", serde_json::to_string(message).expect("plain data"));
}

#[async_trait]
impl Desk for PipeDesk {
    async fn tell(&self, event: Event) {
        say(&Message::Told(event));
    }

    async fn write(&self, worker: &str, resource: &str, token: u64) -> bool {
        let mut replies = self.0.lock().await;
        say(&Message::Write { worker: worker.to_owned(), resource: resource.to_owned(), token });
        let mut reply = String::new();
        // Without a parent nobody takes the write.
        replies.read_line(&mut reply).await.is_ok_and(|_| reply.trim() == "accepted")
    }
}

/// Starts a process for each worker and serves them until all have ended.
pub(crate) async fn run_children(arguments: &Arguments, hub: Hub) -> Result<(), Failure> {
    let mut children = JoinSet::new();
    for index in 0..arguments.workers {
        let mut child = Command::new(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .args(["--worker", &index.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let hub = hub.clone();
        children.spawn(async move {
            let mut input = child.stdin.take().ok_or("no standard input")?;
            let mut lines = BufReader::new(child.stdout.take().ok_or("no standard output")?).lines();
            while let Some(line) = lines.next_line().await? {
                serve(&hub, &line, &mut input).await?;
            }
            match child.wait().await? {
                status if status.success() => Ok::<_, Failure>(()),
                status => Err(format!("a worker ended with {status}").into()),
            }
        });
    }
    while let Some(ended) = children.join_next().await {
        ended??;
    }
    Ok(())
}

async fn serve(hub: &Hub, line: &str, input: &mut ChildStdin) -> Result<(), Failure> {
    match serde_json::from_str(line)? {
        Message::Told(event) => hub.tell(event),
        Message::Write { worker, resource, token } => {
            let reply = if hub.write(&worker, &resource, token) { "accepted\n" } else { "refused\n" };
            input.write_all(reply.as_bytes()).await?;
        }
    }
    Ok(())
}
