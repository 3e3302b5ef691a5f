//! C22 and administration, of a lock with several holders.

use std::time::Duration;

use distlock_api::{LockFilter, LockKey, Loss, Mode};

use super::{ensure_kept, give_back, granted, lasting, permits, refused};
use crate::bounded::{SOON, within};
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure};
use crate::leases::{LONG, renewed_every};

checks! {
    C22 inspect_shows_all_holders Smoke [Shared, Admin]
        "`inspect` shows each lease that holds a key together with others, in the order of the \
         grants, with its mode, owner and remaining time. A failure means that an operator sees \
         only one of them.";
    C22 force_release_takes_all [Shared, Admin]
        "A force-release ends all leases of a key that is held by several. The guards are lost, \
         and the next token is greater than theirs. A failure means that a reader works on beside \
         a writer.";
    C22 force_release_of_one_holder [Shared, Admin]
        "A force-release of one holder ends its lease only, and returns it; the others keep the \
         key. A failure means that an operator takes the lock from the wrong holders.";
    C22 force_release_of_no_holder [Shared, Admin]
        "A force-release of a holder that is not there returns `None`, and takes the lock from no \
         other. A failure means that a late click of an operator ends another holder's lease.";
    Admin release_owner_among_others [Shared, Admin, Owners]
        "A release by owner takes the leases of that owner from a key that others hold as well, \
         and a list by owner shows the key for each of them. A failure means that only the first \
         holder's owner counts, or that others lose their lock.";
}

/// How often the holders look at their leases.
const OFTEN: Duration = Duration::from_millis(250);

async fn inspect_shows_all_holders(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let admin = cx.admin(&c)?;
    let mut modes = vec![Mode::Shared];
    modes.extend(cx.profile().capabilities().permits.then_some(permits(2, 5)));
    for mode in modes {
        let key = cx.key();
        let guards = [
            a.take(&key, lasting(mode).with_owner("one")).await?,
            b.take(&key, lasting(mode).with_owner("two").with_metadata("job", "sleep")).await?,
        ];
        let info = admin.inspect(&key).await?;
        let info = info.ok_or_else(|| Failure::new("inspect shows nothing for a held lock"))?;
        let owners: Vec<_> = info.holders.iter().map(|holder| holder.owner.as_deref()).collect();
        ensure!(owners == [Some("one"), Some("two")], "a lock with the owners one and two is shown as {info:?}");
        let is_first = (info.id.as_ref(), info.owner.as_deref()) == (Some(&info.holders[0].id), Some("one"));
        ensure!(is_first && info.mode() == mode, "a lock ({mode}) is shown as {info:?}");
        for (holder, guard) in info.holders.iter().zip(&guards) {
            let token = guard.fencing_token();
            ensure!(
                holder.mode == mode && holder.token >= token && info.token >= holder.token,
                "a guard ({mode}) with token {token} is shown as {holder:?} of {info:?}"
            );
            let is_left =
                !cx.profile().capabilities().expiry || (holder.remaining <= LONG && holder.remaining > LONG / 2);
            ensure!(is_left, "a lease of {LONG:?} is shown as {holder:?}");
        }
        ensure!(
            info.holders[1].metadata.get("job").is_some_and(|job| job == "sleep"),
            "the remarks of a holder are missing: {info:?}"
        );
        let [first, second] = guards;
        give_back(first).await?;
        let info = admin.inspect(&key).await?;
        let left: Vec<_> = info.iter().flat_map(|info| &info.holders).map(|holder| holder.owner.as_deref()).collect();
        ensure!(left == [Some("two")], "after the release of one of two holders the lock is shown as {info:?}");
        give_back(second).await?;
        let info = admin.inspect(&key).await?;
        ensure!(info.is_none(), "a lock that both holders have released is shown as {info:?}");
    }
    let guard = a.take(&cx.key(), lasting(Mode::Exclusive)).await?;
    let info = admin.inspect(guard.key()).await?;
    let is_alone = info.as_ref().is_some_and(|info| info.holders.is_empty() && info.mode().is_exclusive());
    ensure!(is_alone, "a lock that is held exclusively is shown as {info:?}");
    Ok(())
}

async fn force_release_takes_all(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let key = cx.key();
    let options = || renewed_every(LONG, OFTEN).with_mode(Mode::Shared);
    let victims = [a.take(&key, options()).await?, b.take(&key, options()).await?, b.take(&key, options()).await?];
    let taken = cx.admin(&c)?.force_release(&key, "conformance").await?;
    ensure!(taken.is_some(), "the force-release of a lock with several holders returned None");
    let next = granted(&c, &key, Mode::Exclusive, "all holders were released by force").await?;
    for victim in victims {
        let (token, greatest) = (next.fencing_token(), victim.fencing_token());
        ensure!(token > greatest, "token {token} follows token {greatest} of a victim");
        let loss = within(SOON, "the lost() of one of several victims", victim.lost()).await?;
        ensure!(loss != Loss::Expired, "a force-released lock was lost with {loss:?}");
        let outcome = victim.release().await?;
        ensure!(!outcome.is_released(), "the release of a force-released lock returned {outcome:?}");
    }
    ensure_kept([&next], "the holders before it were released by force")
}

async fn force_release_of_one_holder(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let (key, admin) = (cx.key(), cx.admin(&c)?);
    let options = |owner: &str| renewed_every(LONG, OFTEN).with_mode(Mode::Shared).with_owner(owner);
    let (other, victim) = (a.take(&key, options("other")).await?, b.take(&key, options("victim")).await?);
    let info = admin.inspect(&key).await?.ok_or_else(|| Failure::new("inspect shows nothing for a held lock"))?;
    let holder = info.holders.iter().find(|holder| holder.owner.as_deref() == Some("victim"));
    let Some(holder) = holder else { return Err(Failure::new(format!("one of two holders is not shown: {info:?}"))) };
    let taken = admin.force_release_holder(&key, &holder.id, "conformance").await?;
    ensure!(taken.is_some(), "the force-release of one of two holders returned None");
    let loss = within(SOON, "lost() of the holder that was released by force", victim.lost()).await?;
    ensure!(loss != Loss::Expired, "a force-released lock was lost with {loss:?}");
    ensure_kept([&other], "another holder was released by force")?;
    refused(&c, &key, Mode::Exclusive, "one of two holders was released by force").await?;
    let outcome = victim.release().await?;
    ensure!(!outcome.is_released(), "the release of a force-released lock returned {outcome:?}");
    ensure_kept([&other], "another holder was released by force")?;
    give_back(other).await?;
    let next = granted(&c, &key, Mode::Exclusive, "the last holder has released the key").await?;
    drop(next);
    Ok(())
}

async fn force_release_of_no_holder(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, admin) = (cx.key(), cx.admin(&b)?);
    let past = a.take(&key, lasting(Mode::Shared)).await?;
    let info = admin.inspect(&key).await?;
    let id = info.and_then(|info| info.id).ok_or_else(|| Failure::new("inspect shows no holder of a held lock"))?;
    give_back(past).await?;
    for mode in [Mode::Shared, Mode::Exclusive] {
        let present = a.take(&key, lasting(mode)).await?;
        let taken = admin.force_release_holder(&key, &id, "conformance").await?;
        ensure!(taken.is_none(), "the force-release of a past holder returned {taken:?}");
        let other = if mode.is_exclusive() { Mode::Shared } else { Mode::Exclusive };
        refused(&b, &key, other, "only a past holder was released by force").await?;
        give_back(present).await?;
    }
    Ok(())
}

async fn release_owner_among_others(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let admin = cx.admin(&c)?;
    let mut modes = vec![Mode::Shared];
    modes.extend(cx.profile().capabilities().permits.then_some(permits(1, 3)));
    for mode in modes {
        let key = cx.key();
        let (first, second) = (format!("first-{key}"), format!("second-{key}"));
        let options = |owner: &str| renewed_every(LONG, OFTEN).with_mode(mode).with_owner(owner);
        let other = a.take(&key, options(&first)).await?;
        let victim = b.take(&key, options(&second)).await?;
        for owner in [&first, &second] {
            let filter = LockFilter::new().owner(&**owner);
            let list = admin.page(&filter, None, std::num::NonZeroUsize::new(10).expect("not zero")).await?;
            let keys: Vec<&LockKey> = list.iter().map(|info| &info.key).collect();
            ensure!(keys == [&key], "the locks of one of two owners are {list:?}");
        }
        let released = admin.release_owner(&second, "conformance").await?;
        ensure!(released == 1, "one of two holders has this owner, and {released} were released");
        within(SOON, "lost() of the owner's guard", victim.lost()).await?;
        refused(&c, &key, Mode::Exclusive, "one of two owners was released by force").await?;
        ensure_kept([&other], "another owner was released by force")?;
        give_back(other).await?;
    }
    Ok(())
}
