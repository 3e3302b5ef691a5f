//! What a run says of those that it waits for.

use std::future::pending;
use std::time::Duration;

use distlock::mongodb::MongoProvider;
use distlock::{LockInfo, LockKey, LockProvider, Printable};
use tokio::time::sleep;

use crate::output::say;
use crate::{duration, mode};

/// How long a run waits in silence.
const SILENCE: Duration = Duration::from_secs(1);

/// Says once, after a second, who holds the locks. Never ends.
pub(super) async fn tell(provider: &MongoProvider, keys: &[LockKey]) -> std::convert::Infallible {
    sleep(SILENCE).await;
    for holder in holders(provider, keys).await {
        say(format_args!("waiting: {holder}"));
    }
    pending().await
}

/// Returns who holds those of the locks that are not free; nothing if the server does not tell.
pub(super) async fn holders(provider: &MongoProvider, keys: &[LockKey]) -> Vec<String> {
    let mut holders = Vec::new();
    for key in keys {
        if let Some(admin) = provider.admin()
            && let Ok(Some(info)) = admin.inspect(key).await
        {
            holders.extend(described(&info));
        }
    }
    holders
}

fn described(info: &LockInfo) -> Option<String> {
    if info.remaining.is_zero() {
        return None;
    }
    let owners: Vec<&str> = if info.holders.is_empty() {
        info.owner.as_deref().into_iter().collect()
    } else {
        info.holders.iter().filter_map(|holder| holder.owner.as_deref()).collect()
    };
    let by = match (info.id.is_some(), &*owners) {
        (false, _) => "is closed by its minimum hold".to_owned(),
        (true, []) => "is held".to_owned(),
        (true, [owner]) => format!("is held by {owner}"),
        (true, [owner, others @ ..]) => format!("is held by {owner} and {} more", others.len()),
    };
    let mode = if info.mode().is_exclusive() { String::new() } else { format!(" ({})", mode::summary(info)) };
    let left = duration::show(info.remaining);
    let waiting = match info.waiting {
        None | Some(0) => String::new(),
        Some(1) => ", 1 process waits in line".to_owned(),
        Some(waiting) => format!(", {waiting} processes wait in line"),
    };
    Some(Printable(format!("{:?} {by}{mode}, {left} left unless renewed{waiting}", info.key.as_str())).to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use distlock::{AcquisitionId, FencingToken, LockHolder, Mode};

    use super::*;

    #[test]
    fn holders_are_named() {
        let (key, left) = (LockKey::new("k").unwrap(), Duration::from_secs(5));
        let info =
            |id: Option<&str>| LockInfo::new(key.clone(), id.map(AcquisitionId::new), FencingToken::new(4), left);
        let mut held = info(Some("x"));
        held.owner = Some("host\n pid 7".into());
        assert_eq!(described(&held).unwrap(), r#""k" is held by host\n pid 7, 5.0 s left unless renewed"#);
        let holder = |owner: &str| {
            LockHolder::new(AcquisitionId::new(owner), Mode::Shared, FencingToken::new(3), left)
                .with_holder(Some(owner.to_owned()), BTreeMap::new())
        };
        let shared = info(Some("x")).with_holders(vec![holder("a"), holder("b"), holder("c")]).with_waiting(2);
        let expected =
            r#""k" is held by a and 2 more (shared by 3), 5.0 s left unless renewed, 2 processes wait in line"#;
        assert_eq!(described(&shared).unwrap(), expected);
        let closed = r#""k" is closed by its minimum hold, 5.0 s left unless renewed, 1 process waits in line"#;
        assert_eq!(described(&info(None).with_waiting(1)).unwrap(), closed);
        let free = LockInfo::new(key.clone(), None, FencingToken::new(4), Duration::ZERO);
        assert_eq!(described(&free), None);
    }
}
