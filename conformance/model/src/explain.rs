//! A counterexample as a timeline for people.

use std::fmt::Write;

use crate::action::Action;
use crate::config::Config;
use crate::search::Counterexample;
use crate::state::{Answer, Client, Event, Id, Message, Op, Phase, Record, Stage, State, Told};

/// What happened, a line for each step, and what it changed.
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
        text.push_str("    from here on nothing fails any more\n");
        let wanted = Some(counterexample.property);
        let _ = state.calm(config, wanted, |state, action, next| step(&mut text, state, action, next, config));
    }
    let _ = writeln!(text, "    {:?} has fallen", counterexample.property);
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
    if id.is_some() { format!("{}{}", name(id.client()), id.number()) } else { "nobody".into() }
}

fn record(record: &Record) -> String {
    if !record.exists {
        return "no record".into();
    }
    let mut text = match record.holder {
        Id::NONE => format!("record: free since {}, token {}", record.expires, record.token),
        holder => format!("record: {} until {}, token {}", id(holder), record.expires, record.token),
    };
    if record.closed > 0 {
        let _ = write!(text, ", closed until {}", record.closed);
    }
    if !record.queue.is_empty() {
        let waiters: Vec<String> = record.queue.as_slice().iter().map(|ticket| id(ticket.id)).collect();
        let _ = write!(text, ", waiting: {}", waiters.join(" "));
    }
    text
}

fn client(client: &Client) -> String {
    match client.phase {
        _ if client.dead => "is dead".into(),
        Phase::Idle => "has done with it".into(),
        Phase::Asking => "asks".into(),
        Phase::Waiting => "waits".into(),
        Phase::Held => format!("is certain until {}, token {}", client.deadline, client.token),
        Phase::Leaving if client.farewell => "has lost the lease".into(),
        Phase::Leaving => "gives it up".into(),
    }
}

fn operation(message: &Message) -> String {
    let what = match message.op {
        Op::Acquire => format!("question {}", message.number),
        Op::Release => format!("release {}", message.number),
        Op::Renew => format!("renewal of token {}", message.token),
        Op::Refresh => "refresh".into(),
    };
    format!("{}'s {what} of {}", id(message.id), message.sent)
}

fn answer(message: &Message) -> String {
    let what = match message.answer {
        Answer::None => "nothing".into(),
        Answer::Granted if message.op == Op::Renew => format!("renewed, {} left", message.left),
        Answer::Granted => format!("granted, {} left, last token {}", message.left, message.token),
        Answer::Busy => format!("not yet, {} left, now {}, token {}", message.left, message.now, message.token),
        Answer::Gone => "not yours".into(),
        Answer::Released => "released".into(),
        Answer::Replay => "a stored document".into(),
    };
    format!("the answer to {}: {what}", operation(message))
}

fn event(event: &Event) -> String {
    match event.told {
        Told::Freed => "the key may be free".into(),
        Told::Granted => format!("granted to {} until {}, last token {}", id(event.id), event.expires, event.token),
        Told::Gone => format!("{} has lost it, token {}", id(event.id), event.token),
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
        Action::Begin(at) => format!("{} begins an acquisition and asks", process(at)),
        Action::Ask(at) => format!("{} asks again", process(at)),
        Action::Refresh(at) => format!("{} sends a refresh of its ticket", process(at)),
        Action::Renew(at) => format!("{} sends a renewal", process(at)),
        Action::Release(at) => format!("{} sends its release", process(at)),
        Action::HandOn(at) => format!("{} hands the lease on to its next task", process(at)),
        Action::Cancel(at) => format!("{}'s caller leaves", process(at)),
        Action::Withdraw(at) => format!("{} sends a withdrawal", process(at)),
        Action::NoticeLoss(at) => format!("{} sees that its deadline has passed", process(at)),
        Action::Timeout(at) => format!("{} does not wait any longer for its answer", process(at)),
        Action::Crash(at) => format!("{} dies", process(at)),
        Action::Hear(at) => {
            let heard = &state.clients[usize::from(at)].events.as_slice()[0];
            format!("{} hears an event: {}", process(at), event(heard))
        }
        Action::Break(at) => format!("{}'s stream ends without a word", process(at)),
        Action::Reopen(at) => format!("{} opens its stream again", process(at)),
        Action::Carry(at) => match message(at).stage {
            Stage::Stalled => format!("the server carries out {}, with the clock at {}", about(at), message(at).now),
            _ => format!("the server carries out {}", about(at)),
        },
        Action::Stall(at) => format!("the server begins {}, which stalls; its clock says {}", about(at), state.now()),
        Action::CarryStale(at) => format!("the primary of before carries out {}", about(at)),
        Action::Drop(at) => format!("lost: {}", about(at)),
        Action::Repeat(at) => format!("the driver sends {} again", about(at)),
        Action::Deliver(at) => format!("{} hears {}", name(message(at).id.client()), about(at)),
        Action::Replicate => "a majority has everything".into(),
        Action::Failover(skewed) => {
            let skew = i16::from(skewed) - i16::from(config.faults.skew);
            format!("another member becomes primary, with what the majority has; its clock is off by {skew}")
        }
        Action::Force => format!("the lease of {} is taken away by force", id(state.server.record.holder)),
        Action::Purge => "the TTL monitor removes the record".into(),
    }
}
