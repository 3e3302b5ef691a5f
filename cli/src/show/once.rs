//! `distlock show --once`: what is known of work that is done once.

use distlock::LockKey;
use distlock::once::{OnceProvider, OnceRecord, OnceRun, OnceState};
use serde_json::{Value, json};

use crate::connect::ConnectionArgs;
use crate::failure::Failure;
use crate::outcomes::Outcomes;
use crate::output::{self, Format, aligned};
use crate::state::time;

/// Prints the state of the work. Work that was never begun is no error.
///
/// # Errors
/// MongoDB does not answer, or the output fails.
pub(super) async fn run(key: &LockKey, connection: &ConnectionArgs, format: Format) -> Result<(), Failure> {
    let record = Outcomes::use_once(connection, async |jobs| Ok(jobs.inspect(key).await?)).await?;
    match format {
        Format::Json => output::json(&object(key, &record))?,
        Format::Human => output::line(&lines(key, &record))?,
    }
    Ok(())
}

/// Returns the state in one word, the run that made it so, and when it was done.
fn parts(record: &OnceRecord) -> (&'static str, Option<&OnceRun>, Option<String>) {
    match &record.state {
        OnceState::New => ("new", None, None),
        OnceState::UnderWay(run) => ("under way", Some(run), None),
        OnceState::Interrupted(run) => ("interrupted", Some(run), None),
        OnceState::Done(outcome) => ("done", Some(outcome.run()), Some(time(outcome.at()))),
        _ => ("unknown", None, None),
    }
}

fn object(key: &LockKey, record: &OnceRecord) -> Value {
    let (state, run, done) = parts(record);
    json!({
        "key": key.as_str(),
        "state": state,
        "owner": run.and_then(|run| run.owner.as_deref()),
        "token": run.map(|run| run.token.get()),
        "begun_at": run.map(|run| time(run.since)),
        "done_at": done,
    })
}

fn lines(key: &LockKey, record: &OnceRecord) -> String {
    let (state, run, done) = parts(record);
    let mut lines = vec![("key", key.as_str().to_owned()), ("state", state.to_owned())];
    if let Some(run) = run {
        lines.push(("token", run.token.to_string()));
        lines.extend(run.owner.as_deref().map(|owner| ("owner", owner.to_owned())));
        lines.push(("begun", time(run.since)));
    }
    lines.extend(done.map(|at| ("done", at)));
    aligned(&lines)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use distlock::FencingToken;
    use distlock::once::Outcome;

    use super::*;

    #[test]
    fn each_state_has_its_lines() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let run = || OnceRun::new(FencingToken::new(7), Some("me\n".into()), at(0));
        let done = Outcome::new(b"0".as_slice().into(), run(), at(60));
        let of_run = "\ntoken       7\nowner       me\\n\nbegun       1970-01-01T00:00:00Z";
        for (state, expected) in [
            (OnceState::New, "new".to_owned()),
            (OnceState::UnderWay(run()), format!("under way{of_run}")),
            (OnceState::Interrupted(run()), format!("interrupted{of_run}")),
            (OnceState::Done(done), format!("done{of_run}\ndone        1970-01-01T00:01:00Z")),
        ] {
            let shown = lines(&LockKey::new("k").unwrap(), &OnceRecord::new(state, None));
            assert_eq!(shown, format!("key         k\nstate       {expected}"));
        }
    }
}
