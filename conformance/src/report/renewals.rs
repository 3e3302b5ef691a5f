//! The renewals of leases, to explain why one was lost.

use std::collections::BTreeMap;

use crate::history::{Call, CallKind};
use crate::recorder::RENEWAL;

/// The maximum of lines. Those of the failure's locks come first.
const MOST: usize = 6;

/// Writes a line for each client and lock: how many renewals were sent and answered, the last one,
/// and the last one that failed.
pub(super) fn lines(calls: &[Call], shown_by: &[Call]) -> Vec<String> {
    let mut renewals: BTreeMap<(bool, usize, &str), Vec<&Call>> = BTreeMap::new();
    for call in calls {
        if matches!(&call.what, CallKind::Sent { request, .. } if request == RENEWAL) {
            let is_other = !shown_by.iter().any(|shown| shown.key == call.key);
            renewals.entry((is_other, call.client, &call.key)).or_default().push(call);
        }
    }
    renewals.into_iter().take(MOST).map(|((_, client, key), sent)| line(client, key, &sent)).collect()
}

fn line(client: usize, key: &str, sent: &[&Call]) -> String {
    let answered = sent.iter().filter(|call| answer(call).is_some()).count();
    let mut line = format!("client {client} sent {} for {key:?}, {answered} of them answered", sent.len());
    if let Some(last) = sent.last() {
        line.push_str(&format!("; the last was sent at {:?}", last.asked));
        match (answer(last), last.answered) {
            (Some(answer), Some(at)) => line.push_str(&format!(" and answered {:?} later: {answer}", at - last.asked)),
            _ => line.push_str(" and not answered"),
        }
    }
    let is_good = |call: &&&Call| answer(call).is_some_and(|answer| answer.starts_with("Held"));
    let earlier = &sent[..sent.len().saturating_sub(1)];
    if let Some(bad) = earlier.iter().rfind(|call| !is_good(call)) {
        let said = answer(bad).unwrap_or("no answer");
        line.push_str(&format!("; of those before, the last that failed was sent at {:?}: {said}", bad.asked));
    }
    line
}

fn answer(call: &Call) -> Option<&str> {
    match &call.what {
        CallKind::Sent { answer, .. } => answer.as_deref(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use distlock_api::Mode;

    use super::*;

    fn sent(at: u64, said: Option<&str>) -> Call {
        let what = CallKind::Sent { request: RENEWAL.to_owned(), answer: said.map(str::to_owned) };
        let asked = Duration::from_millis(at);
        let answered = said.map(|_| asked + Duration::from_millis(3));
        Call { client: 1, key: "k".to_owned(), asked, answered, queued: None, mode: Mode::Exclusive, what }
    }

    #[test]
    fn says_how_many_when_and_what_went_wrong() {
        let calls = [sent(10, Some("Held")), sent(20, Some("error: no answer")), sent(30, None)];
        let line = &lines(&calls, &[])[0];
        assert_eq!(
            line,
            "client 1 sent 3 for \"k\", 2 of them answered; the last was sent at 30ms and not answered; of those \
             before, the last that failed was sent at 20ms: error: no answer"
        );
        let line = &lines(&calls[..1], &[])[0];
        assert!(line.ends_with("the last was sent at 10ms and answered 3ms later: Held"), "{line}");
        assert!(lines(&[], &[]).is_empty());
    }
}
