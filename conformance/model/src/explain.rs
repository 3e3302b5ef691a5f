//! Writes a counterexample as a timeline.

use std::fmt::Write;

use crate::action::Action;
use crate::config::Config;
use crate::ids::Id;
use crate::modes::{Lease, Mode};
use crate::search::Counterexample;
use crate::state::{Answer, Client, Event, EventKind, Message, Op, Phase, Record, Stage, State};

/// Writes a line for each step, with what it changed.
#[must_use]
pub fn timeline(config: &Config, counterexample: &Counterexample) -> String {
    let mut text = String::new();
    let mut state = State::initial(config);
    for action in &counterexample.path {
        let (next, _) = state.after(*action, config);
        step(&mut text, &state, *action, &next, config);
        state = next;
    }
    if counterexample.is_calm {
        text.push_str("    from here on there are no faults\n");
        let wanted = Some(counterexample.property);
        let _ = state.calm(config, wanted, |state, action, next| step(&mut text, state, action, next, config));
    }
    let _ = writeln!(text, "    violated: {:?}", counterexample.property);
    text
}

fn step(text: &mut String, before: &State, action: Action, after: &State, config: &Config) {
    let mut line = phrase(before, action, config);
    if before.server.record != after.server.record {
        let _ = write!(line, "; {}", record(&after.server.record));
    }
    for at in 0..usize::from(config.clients) {
        let (old, new) = (&before.clients[at], &after.clients[at]);
        if (old.phase, old.deadline, old.token) != (new.phase, new.deadline, new.token) {
            let _ = write!(line, "; {} {}", name(at), client(new));
        }
    }
    let _ = writeln!(text, "{:>3} {line}", before.time);
}

fn name(client: usize) -> char {
    char::from(b'A' + client as u8)
}

fn id(id: Id) -> String {
    if id == Id::SHARED {
        "the holders".into()
    } else if id.is_some() {
        format!("{}{}", name(id.client()), id.number())
    } else {
        "none".into()
    }
}

fn record(record: &Record) -> String {
    if !record.exists {
        return "no record".into();
    }
    let mut text = match record.holder {
        Id::NONE => format!("record: free since {}, token {}", record.expires, record.token),
        Id::SHARED => format!("record: {} until {}, token {}", holders(record), record.expires, record.token),
        holder => format!("record: {} until {}, token {}", id(holder), record.expires, record.token),
    };
    if record.holder != Id::SHARED && !record.holders.is_empty() {
        let _ = write!(text, ", left behind: {}", holders(record));
    }
    if record.closed > 0 {
        let _ = write!(text, ", closed until {}", record.closed);
    }
    if !record.queue.is_empty() {
        let waiters: Vec<String> = record.queue.as_slice().iter().map(|ticket| id(ticket.id)).collect();
        let _ = write!(text, ", waiting: {}", waiters.join(" "));
    }
    text
}

fn holders(record: &Record) -> String {
    let one = |lease: &Lease| {
        format!("{} {} (until {}, token {})", id(lease.id), mode(lease.mode), lease.expires, lease.token)
    };
    record.holders.as_slice().iter().map(one).collect::<Vec<_>>().join(" + ")
}

fn mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "alone".into(),
        Mode::Shared => "shared".into(),
        Mode::Permits { take, of } => format!("{take} of {of}"),
    }
}

fn client(client: &Client) -> String {
    match client.phase {
        _ if client.dead => "is dead".into(),
        Phase::Idle => "has ended the acquisition".into(),
        Phase::Attempting => "attempts".into(),
        Phase::Waiting => "waits".into(),
        Phase::Held => format!("is certain until {}, token {}", client.deadline, client.token),
        _ if client.others > 0 => format!("has readers that are certain until {}", client.deadline),
        Phase::Leaving if client.after_loss => "has lost the lease".into(),
        Phase::Leaving => "gives the acquisition up".into(),
    }
}

fn operation(message: &Message) -> String {
    let what = match message.op {
        Op::Acquire => format!("attempt {}", message.number),
        Op::Release => format!("release {}", message.number),
        Op::Renew => format!("renewal of token {}", message.token),
        Op::Refresh => "refresh".into(),
        Op::Batch => "batch".into(),
    };
    format!("{}'s {what} of {}", id(message.id), message.sent)
}

fn answer(message: &Message) -> String {
    let what = match message.answer {
        Answer::None => "nothing".into(),
        Answer::Granted if message.op == Op::Renew => format!("renewed, {} left", message.left),
        Answer::Granted => format!("granted, {} left, last token {}", message.left, message.token),
        Answer::Busy => format!("busy, {} left, now {}, token {}", message.left, message.now, message.token),
        Answer::Gone => "gone".into(),
        Answer::Released => "released".into(),
        Answer::Replay => "a stored document".into(),
    };
    format!("the answer to {}: {what}", operation(message))
}

fn event(event: &Event) -> String {
    match event.kind {
        EventKind::Opened => "the key may be free".into(),
        EventKind::Granted => {
            format!("granted to {} until {}, last token {}", id(event.id), event.expires, event.token)
        }
        EventKind::Gone => format!("{} has lost it, token {}", id(event.id), event.token),
    }
}

fn phrase(state: &State, action: Action, config: &Config) -> String {
    let message = |at: u8| &state.messages.as_slice()[usize::from(at)];
    let about = |at: u8| match message(at) {
        message if message.stage == Stage::Answer => answer(message),
        message => operation(message),
    };
    let process = |at: u8| name(usize::from(at));
    match action {
        Action::Tick => format!("time passes: {}", state.time + 1),
        Action::Begin(at) => format!("{} begins an acquisition and sends an attempt", process(at)),
        Action::Attempt(at) => format!("{} sends another attempt", process(at)),
        Action::Refresh(at) => format!("{} sends a refresh of its ticket", process(at)),
        Action::Renew(at) => format!("{} sends a renewal", process(at)),
        Action::Release(at) => format!("{} sends its release", process(at)),
        Action::HandOn(at) => format!("{} hands the lease on to its next task", process(at)),
        Action::Join(at) => format!("another reader of {} joins its lease", process(at)),
        Action::Part(at) => format!("one of {}'s readers leaves", process(at)),
        Action::Cancel(at) => format!("{}'s caller leaves", process(at)),
        Action::Withdraw(at) => format!("{} sends a withdrawal", process(at)),
        Action::GiveUp(at) => format!("{} gives its clean-up up", process(at)),
        Action::NoticeLoss(at) => format!("{} finds that its deadline has passed", process(at)),
        Action::Timeout(at) => format!("{} stops waiting for its answer", process(at)),
        Action::Crash(at) => format!("{} dies", process(at)),
        Action::ReceiveEvent(at) => {
            let received = &state.clients[usize::from(at)].events.as_slice()[0];
            format!("{} receives an event: {}", process(at), event(received))
        }
        Action::EndStream(at) => format!("{}'s stream ends silently", process(at)),
        Action::ReopenStream(at) => format!("{} opens its stream again", process(at)),
        Action::Execute(at) => match message(at).stage {
            Stage::Stalled => format!("the server executes {}, with the clock at {}", about(at), message(at).now),
            _ => format!("the server executes {}", about(at)),
        },
        Action::Stall(at) => format!("the server begins {}, which stalls; its clock reads {}", about(at), state.now()),
        Action::ExecuteOnStale(at) => format!("the former primary executes {}", about(at)),
        Action::Drop(at) => format!("lost: {}", about(at)),
        Action::Repeat(at) => format!("the driver sends {} again", about(at)),
        Action::DeliverAnswer(at) => format!("{} receives {}", name(message(at).id.client()), about(at)),
        Action::Replicate => "a majority has all writes".into(),
        Action::Failover(skewed) => {
            let skew = i16::from(skewed) - i16::from(config.faults.skew);
            format!("another member becomes primary, with the data of the majority; its clock is off by {skew}")
        }
        Action::Force => format!("the lease of {} is force-released", id(state.server.record.holder)),
        Action::ForceHolder(at) => {
            let leases = state.server.record.leases(state.now());
            format!("the lease of {} alone is force-released", id(leases.as_slice()[usize::from(at)].id))
        }
        Action::Purge => "the TTL monitor removes the record".into(),
    }
}
