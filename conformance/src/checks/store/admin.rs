//! What the administration of a store shows and releases.

use std::num::NonZeroUsize;
use std::time::Duration;

use distlock_api::{LockAdmin, LockFilter, LockKey};
use tokio::time::sleep;

use crate::bare::LEASE;
use crate::bounded::{LIVENESS, within};
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure, located_at_caller};

checks! {
    Admin store_prefixes_are_bytes [Store, Admin, Owners]
        "A prefix matches by its bytes: no character of it is a pattern, and case matters. A \
         failure means that a list or a release includes other keys.";
    Admin store_pages_in_order_of_bytes [Store, Admin, Owners]
        "Pages follow each other in the order of the keys' bytes: no lock is missing, and none is \
         shown twice. A failure means that the store sorts and continues by different orders.";
    Admin store_hides_the_expired [Store, Admin, Owners, Expiry]
        "An expired lease is neither shown nor released by force. A failure means that \
         administration reads records without the clock.";
}

/// Lists all locks that a filter matches, in pages of `size`.
#[track_caller]
fn listed(
    admin: &dyn LockAdmin,
    filter: &LockFilter,
    size: usize,
) -> impl Future<Output = Result<Vec<LockKey>, Failure>> {
    located_at_caller(async move {
        let size = NonZeroUsize::new(size).expect("pages hold something");
        let mut keys: Vec<LockKey> = Vec::new();
        loop {
            let page = within(LIVENESS, "a page", admin.page(filter, keys.last(), size)).await??;
            let is_last = page.len() < size.get();
            keys.extend(page.into_iter().map(|info| info.key));
            // A store that repeats a page would never end.
            if is_last || keys.len() > 1000 {
                return Ok(keys);
            }
        }
    })
}

async fn store_prefixes_are_bytes(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let base = cx.key();
    let names = ["a_b", "aXb", "a%b", "a\\b", "a*b", "a?b", "a.b", "a[b", "a]b", "a^b", "a$b", "a(b", "A_B", "a'b"];
    let key = |name: &str| LockKey::new(format!("{base}/{name}/1")).expect("a valid key");
    let mut held = Vec::new();
    for name in names {
        let claim = a.claim(&key(name));
        held.push((claim.clone(), a.take(&claim, LEASE).await?));
    }
    let admin = b.admin()?;
    for name in names {
        let filter = LockFilter::new().prefix(format!("{base}/{name}/"));
        let seen = listed(admin, &filter, 100).await?;
        ensure!(seen == [key(name)], "with the prefix {:?} the list is {seen:?}", filter.prefix);
    }
    for (at, name) in names.into_iter().enumerate() {
        let filter = LockFilter::new().prefix(format!("{base}/{name}/"));
        let released = admin.release_matching(&filter, "conformance").await?;
        ensure!(released == 1, "with the prefix {:?} {released} locks were released instead of 1", filter.prefix);
        for (claim, grant) in &held[at + 1..] {
            let why = format!("only what begins with {:?} was released", filter.prefix);
            a.ensure_held(claim, grant, &why).await?;
        }
    }
    Ok(())
}

async fn store_pages_in_order_of_bytes(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let base = cx.key();
    let names = [
        "a",
        "B",
        "b",
        "A",
        "C",
        "c",
        "_",
        "-",
        "~",
        "a b",
        "a-b",
        "a_b",
        "ab",
        "10",
        "9",
        "\u{e9}",
        "e",
        "z",
        "Z",
        "\u{ffff}",
        "\u{10000}",
    ];
    let mut keys = names.map(|name| LockKey::new(format!("{base}/{name}")).expect("a valid key"));
    for key in &keys {
        a.take(&a.claim(key), LEASE).await?;
    }
    keys.sort_by(|a, b| a.as_str().as_bytes().cmp(b.as_str().as_bytes()));
    let filter = LockFilter::new().prefix(format!("{base}/"));
    for size in [1, 2, 3, 5, names.len(), 100] {
        let seen = listed(b.admin()?, &filter, size).await?;
        ensure!(seen == keys, "in pages of {size} the list is {seen:?} instead of {keys:?}");
    }
    Ok(())
}

async fn store_hides_the_expired(cx: Context) -> Verdict {
    const BRIEF: Duration = Duration::from_millis(100);
    let [a, b] = cx.stores().await?;
    let base = cx.key();
    let key = |name: &str| LockKey::new(format!("{base}/{name}")).expect("a valid key");
    let (expired, held) = (key("expired"), key("held"));
    a.take(&a.claim(&expired), BRIEF).await?;
    let claim = a.claim(&held);
    let grant = a.take(&claim, LEASE).await?;
    sleep(BRIEF * 2).await;
    let (admin, filter) = (b.admin()?, LockFilter::new().prefix(format!("{base}/")));
    let seen = listed(admin, &filter, 10).await?;
    ensure!(seen == [held.clone()], "the list is {seen:?}, and only {held:?} is held");
    let shown = admin.inspect(&expired).await?;
    ensure!(shown.is_none(), "an expired lease is shown as {shown:?}");
    let taken = admin.force_release(&expired, "conformance").await?;
    ensure!(taken.is_none(), "the force-release of an expired lease returned {taken:?}");
    a.ensure_held(&claim, &grant, "another key was force-released").await?;
    let released = admin.release_matching(&filter, "conformance").await?;
    ensure!(released == 1, "one lock is held, and {released} were released");
    Ok(())
}
