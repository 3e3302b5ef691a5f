//! Administration: lists, releases by owner and by prefix, and the history of force-releases (C22).

use std::time::Duration;

use distlock_api::{ErrorKind, ForcedRelease, ListOptions, LockAdmin, LockFilter, LockInfo, LockKey, Loss};
use futures_util::TryStreamExt;

use crate::bounded::{SOON, eventually, within};
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure, located_at_caller};
use crate::leases::{LONG, renewed, renewed_every, unrenewed};

checks! {
    C22 history_records_who_and_why [Admin, Owners]
        "A key's history lists each force-release, oldest first: who lost the lock, with which \
         token, and why. A failure means that an operator cannot trace what was taken away.";
    Admin list_shows_what_is_held Smoke [Admin, Owners]
        "A list shows exactly the held locks of a prefix, in the order of their keys, whatever the \
         page size. A failure means that pages skip, repeat or invent locks.";
    Admin list_by_owner [Admin, Owners]
        "A list by owner shows exactly that owner's locks. A failure means that owners are \
         compared by a part of their name, or that old owners are shown.";
    Admin list_forgets_the_expired [Admin, Owners, Expiry]
        "An expired lease is not listed, although no client has taken the key over. A failure \
         means that an operator sees holders that are gone.";
    Admin release_owner Smoke [Admin, Owners]
        "A release by owner takes all of that owner's locks from all clients, returns their \
         number, records the reason, and leaves other owners alone. A failure means that it takes \
         too many locks or too few.";
    Admin release_by_prefix [Admin, Owners]
        "A release by prefix leaves other keys alone. A failure means that it takes locks outside \
         the prefix.";
    Admin release_of_everything_is_refused [Admin, Owners]
        "A filter that matches every lock is refused and releases none. A failure means that an \
         empty filter can take all locks away.";
    Admin owners_are_refused [Admin, NoOwners]
        "A backend that cannot list locks refuses to with `Unsupported`. A failure means that it \
         returns an answer that must be wrong.";
}

/// Keys with a random prefix of their own.
fn keys<const N: usize>(cx: &Context, names: [&str; N]) -> (String, [LockKey; N]) {
    let prefix = format!("{}/", cx.key());
    let keys = names.map(|name| LockKey::new(format!("{prefix}{name}")).expect("a valid key"));
    (prefix, keys)
}

#[track_caller]
fn listed(admin: &dyn LockAdmin, options: ListOptions) -> impl Future<Output = Result<Vec<LockInfo>, Failure>> {
    located_at_caller(async move { Ok(within(SOON, "a list to end", admin.list(options).try_collect()).await??) })
}

fn names(list: &[LockInfo]) -> Vec<&LockKey> {
    list.iter().map(|info| &info.key).collect()
}

async fn history_records_who_and_why(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, admin) = (cx.key(), cx.admin(&b)?);
    let none = admin.history(&key).await?;
    ensure!(none.is_empty(), "a lock that was never held has the history {none:?}");
    let mut expected = Vec::new();
    for (owner, reason) in [("one", "$first"), ("two", "second \u{0}")] {
        let guard = a.take(&key, renewed(LONG).with_owner(owner)).await?;
        let victim = admin.force_release(&key, reason).await?;
        let id = victim.and_then(|victim| victim.id);
        expected.push((id, Some(owner.to_owned()), guard.fencing_token(), reason.to_owned()));
    }
    let outcome = a.take(&key, renewed(LONG)).await?.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    let history = admin.history(&key).await?;
    // The history has the last token of the lease's block, the guard had the first.
    let is_recorded = |entry: &ForcedRelease, (id, owner, token, reason): &(Option<_>, Option<String>, _, String)| {
        (&entry.id, &entry.owner, &entry.reason) == (id, owner, reason) && entry.token >= *token
    };
    let all_recorded = history.len() == expected.len() && history.iter().zip(&expected).all(|(e, x)| is_recorded(e, x));
    ensure!(all_recorded && history[0].token < expected[1].2, "the history is {history:?} instead of {expected:?}");
    ensure!(history[0].at <= history[1].at, "the history goes back in time: {history:?}");
    let other = admin.history(&cx.key()).await?;
    ensure!(other.is_empty(), "another key has the history {other:?}");
    Ok(())
}

async fn list_shows_what_is_held(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let admin = cx.admin(&b)?;
    // `outside` does not begin with the prefix, and follows all keys that do.
    let (prefix, keys) = keys(&cx, ["b", "a", "c/\u{10ffff}", "$d"]);
    let outside = LockKey::new(format!("{}0", &prefix[..prefix.len() - 1])).expect("a valid key");
    let nothing = listed(admin, ListOptions::new().prefix(&prefix)).await?;
    ensure!(nothing.is_empty(), "locks that were never held are listed: {nothing:?}");
    let _outside = a.take(&outside, renewed(LONG)).await?;
    let mut guards = Vec::new();
    for (client, key) in [&a, &b, &a, &b].into_iter().zip(&keys) {
        guards.push(client.take(key, renewed(LONG).with_owner("me")).await?);
    }
    let mut sorted = keys.clone();
    sorted.sort();
    // Pages that end with the list, within it, and beyond it.
    for size in [1, 2, 3, 4, 100] {
        let list = listed(admin, ListOptions::new().prefix(&prefix).page_size(size)).await?;
        ensure!(
            names(&list) == sorted.each_ref(),
            "in pages of {size} the list is {:?} instead of {sorted:?}",
            names(&list)
        );
        for (info, guard) in list.iter().filter_map(|info| Some((info, guards.iter().find(|g| *g.key() == info.key)?)))
        {
            ensure!(info.id.is_some() && info.owner.as_deref() == Some("me"), "a held lock is listed as {info:?}");
            ensure!(
                info.token >= guard.fencing_token(),
                "{info:?} is listed for a guard with the token {}",
                guard.fencing_token()
            );
        }
    }
    let all = listed(admin, ListOptions::new().page_size(1000)).await?;
    ensure!(
        names(&all).contains(&&outside) && names(&all).contains(&&keys[0]),
        "the list of all locks lacks a held one"
    );
    for guard in guards.drain(..2) {
        let outcome = guard.release().await?;
        ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    }
    let list = listed(admin, ListOptions::new().prefix(&prefix)).await?;
    ensure!(names(&list) == [&keys[3], &keys[2]], "after two releases the list is {:?}", names(&list));
    Ok(())
}

async fn list_by_owner(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let admin = cx.admin(&b)?;
    let (prefix, [one, two, three]) = keys(&cx, ["1", "2", "3"]);
    let (owner, longer) = (format!("$owner-{prefix}"), format!("$owner-{prefix}x"));
    let guard = a.take(&one, renewed(LONG).with_owner(&owner)).await?;
    let _longer = a.take(&two, renewed(LONG).with_owner(longer)).await?;
    let _third = b.take(&three, renewed(LONG).with_owner(&owner)).await?;
    let list = listed(admin, ListOptions::new().owner(&owner).page_size(1)).await?;
    ensure!(names(&list) == [&one, &three], "the list of the owner is {list:?}");
    let list = listed(admin, ListOptions::new().owner(&owner).prefix(three.as_str())).await?;
    ensure!(names(&list) == [&three], "the list of the owner and a prefix is {list:?}");
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    let _other = a.take(&one, renewed(LONG).with_owner("another owner")).await?;
    let list = listed(admin, ListOptions::new().owner(&owner)).await?;
    ensure!(names(&list) == [&three], "a lock that went to another owner is listed: {list:?}");
    let list = listed(admin, ListOptions::new().owner(prefix)).await?;
    ensure!(list.is_empty(), "the list of an owner that does not exist is {list:?}");
    Ok(())
}

async fn list_forgets_the_expired(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let admin = cx.admin(&b)?;
    let (prefix, [expiring, held]) = keys(&cx, ["1", "2"]);
    let _expiring = a.take(&expiring, unrenewed(cx.short())).await?;
    let _held = a.take(&held, renewed(LONG)).await?;
    eventually(cx.short() + SOON, "an expired lease to leave the list", async || {
        let list = listed(admin, ListOptions::new().prefix(&prefix)).await?;
        Ok(names(&list) == [&held])
    })
    .await
}

async fn release_owner(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let admin = cx.admin(&c)?;
    let (prefix, [one, two, three, four]) = keys(&cx, ["1", "2", "3", "4"]);
    let owner = format!("session-{prefix}");
    let mut victims = Vec::new();
    for (client, key) in [(&a, &one), (&a, &two), (&b, &three)] {
        let options = renewed_every(LONG, Duration::from_millis(250)).with_owner(&owner);
        victims.push(client.take(key, options).await?);
    }
    let bystander = a.take(&four, renewed(LONG).with_owner("another owner")).await?;
    let released = admin.release_owner(&owner, "$session ended").await?;
    ensure!(released == 3, "{released} locks were released instead of 3");
    let again = admin.release_owner(&owner, "twice").await?;
    ensure!(again == 0, "{again} locks were released twice");
    for victim in &victims {
        let next = c.attempt(victim.key(), renewed(LONG)).await?;
        let next = next.ok_or_else(|| Failure::new("a released lock is busy"))?;
        ensure!(next.fencing_token() > victim.fencing_token(), "the token did not increase");
        let history = admin.history(victim.key()).await?;
        ensure!(history.len() == 1, "the history of a lock that was released once is {history:?}");
        let entry = &history[0];
        ensure!(
            entry.owner.as_deref() == Some(&*owner) && entry.reason == "$session ended" && entry.id.is_some(),
            "the history is {history:?}"
        );
        drop(next);
    }
    ensure!(!bystander.is_lost(), "another owner's lock was lost, too: {:?}", bystander.loss());
    let outcome = bystander.release().await?;
    ensure!(outcome.is_released(), "the release of another owner's lock returned {outcome:?}");
    for victim in victims {
        let loss = within(SOON, "a victim's lost()", victim.lost()).await?;
        ensure!(loss != Loss::Expired, "a force-released lock was lost with {loss:?}");
        let outcome = victim.release().await?;
        ensure!(!outcome.is_released(), "the release of a force-released lock returned {outcome:?}");
    }
    Ok(())
}

async fn release_by_prefix(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let admin = cx.admin(&b)?;
    let (prefix, [one, two]) = keys(&cx, ["a/1", "b/1"]);
    let _victim = a.take(&one, renewed(LONG)).await?;
    let bystander = a.take(&two, renewed(LONG)).await?;
    let released = admin.release_matching(&LockFilter::new().prefix(format!("{prefix}a/")), "conformance").await?;
    ensure!(released == 1, "{released} locks were released instead of 1");
    let list = listed(admin, ListOptions::new().prefix(prefix)).await?;
    ensure!(names(&list) == [&two], "after a release by prefix the list is {list:?}");
    ensure!(!bystander.is_lost(), "a lock outside the prefix was lost: {:?}", bystander.loss());
    Ok(())
}

async fn release_of_everything_is_refused(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let guard = a.take(&cx.key(), renewed(LONG)).await?;
    match cx.admin(&b)?.release_matching(&LockFilter::new(), "conformance").await {
        Err(error) => ensure!(error.kind() == ErrorKind::InvalidOptions, "an empty filter was refused with {error:?}"),
        Ok(released) => {
            return Err(Failure::new(format!("an empty filter was accepted: {released} locks were released")));
        }
    }
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    Ok(())
}

async fn owners_are_refused(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let admin = cx.admin(&client)?;
    let refusals = [
        admin.list(ListOptions::new()).try_next().await.err(),
        admin.release_owner("an owner", "conformance").await.err(),
        admin.history(&cx.key()).await.err(),
    ];
    for refusal in refusals {
        let refusal = refusal.ok_or_else(|| Failure::new("a call that the profile does not declare was answered"))?;
        ensure!(refusal.kind() == ErrorKind::Unsupported, "a call was refused with {refusal:?} instead of Unsupported");
    }
    Ok(())
}
