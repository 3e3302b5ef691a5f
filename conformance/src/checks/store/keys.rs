//! C20: keys that a store may mix up although each is sound by itself; C5: tokens that outlive
//! them; and lists that must look beyond many others.

use std::num::NonZeroUsize;
use std::time::Duration;

use distlock_api::{Holder, LockFilter, LockKey};
use distlock_engine::store::{Attempt, Reply, Ticket};
use futures_util::future::try_join_all;
use tokio::time::sleep;

use crate::bare::{BareStore, LEASE, last};
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure, located_at_caller};
use crate::need::Need;

checks! {
    C20 store_keys_have_no_companions [Store]
        "A key that ends as a store may name the queue, the counter or the history of another one \
         is a lock of its own. A failure means that what belongs to one key is taken for another.";
    C20 store_keys_are_not_shortened [Store]
        "Of very many keys, and of keys whose usual hashes are equal, each is a lock of its own. A \
         failure means that the store compares hashes that are too short.";
    C5 store_tokens_outlive_leases [Store, Expiry]
        "A grant long after the end of a short lease has a greater token, without a purge. A \
         failure means that the counter of a key expires by itself.";
    Admin store_pages_beyond_others [Store, Admin, Owners]
        "A list finds the locks of an owner beyond hundreds of others, whatever the page size. A \
         failure means that a list ends after a number of keys that it has looked at.";
}

/// How many requests for keys are under way at once.
const AT_ONCE: usize = 16;

/// How stores name what belongs to a key.
#[rustfmt::skip]
const COMPANIONS: &[&str] = &[
    ":q", ":queue", ":w", ":waiters", ":t", ":token", ":tokens", ":fence", ":n", ":seq", ":counter", ":h",
    ":history", ":holder", ":holders", ":owner", ":meta", ":r", ":released", ":lock", ":0", ":1", ".q", ".queue",
    ".token", ".lock", "/q", "/queue", "/token", "/lock", "/0", "-queue", "-token", "_queue", "_token", "#q", "~",
    "\u{0}q", "|q", "{q}", ":channel", ":notify",
];

/// Words with equal hashes of 32 bits: FNV-1a, FNV-1, DJB2, DJB2a, CRC-32, and that of Java.
const EQUAL: &[[&str; 2]] = &[
    ["costarring", "liquid"],
    ["declinate", "macallums"],
    ["altarage", "zinke"],
    ["creamwove", "quists"],
    ["hetairas", "mentioner"],
    ["heliotropes", "neurospora"],
    ["playwright", "snush"],
    ["haggadot", "loathsomenesses"],
    ["codding", "gnu"],
    ["exhibiters", "schlager"],
    ["Aa", "BB"],
];

fn key(text: impl AsRef<str>) -> LockKey {
    LockKey::new(text.as_ref()).expect("a valid key")
}

/// Takes these free keys. Returns the attempts.
#[track_caller]
fn take_all(store: &BareStore, keys: &[LockKey]) -> impl Future<Output = Result<Vec<Attempt>, Failure>> {
    located_at_caller(async move {
        let attempts: Vec<Attempt> = keys.iter().map(|key| store.attempt(&store.claim(key), LEASE)).collect();
        // One after the other, a slow store would take as long as a lease.
        let parts = attempts.chunks(attempts.len().div_ceil(AT_ONCE)).map(|part| store.ask_all(part));
        let answers = try_join_all(parts).await?.into_iter().flatten();
        for (answer, attempt) in answers.zip(&attempts) {
            let answer = match answer? {
                Reply::Busy(busy) if busy.undecided => store.ask(attempt).await??,
                answer => answer,
            };
            let is_granted = matches!(answer, Reply::Granted(_));
            ensure!(is_granted, "{:?} was never locked, and the attempt was answered {answer:?}", attempt.claim.key());
        }
        Ok(attempts)
    })
}

async fn store_keys_have_no_companions(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let base = cx.key();
    let holder = a.claim(&base);
    let grant = a.take(&holder, LEASE).await?;
    let waiter = b.claim(&base);
    if cx.profile().has(Need::Fair) {
        b.queued(&waiter, Ticket::new(LEASE, LEASE, 10), 0).await?;
    }
    let companions: Vec<LockKey> = COMPANIONS.iter().map(|end| key(format!("{base}{end}"))).collect();
    let taken = take_all(&b, &companions).await?;
    for attempt in &taken {
        b.give_back(&attempt.claim).await?;
    }
    a.ensure_held(&holder, &grant, "keys that begin with its key were locked and released").await?;
    a.give_back(&holder).await?;
    let next = b.attempt(&waiter, LEASE);
    let next = if cx.profile().has(Need::Fair) { next.with_ticket(Ticket::new(LEASE, LEASE, 10)) } else { next };
    let next = b.granted(&next, "the key was released, beside keys that begin with it").await?;
    ensure!(next.token > last(&grant), "after {grant:?} the next grant was {next:?}, whose token is not greater");
    Ok(())
}

async fn store_keys_are_not_shortened(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let base = cx.key();
    // Most of these hashes are equal only at the beginning of a text, whatever follows. The words
    // alone would be keys of another run, too.
    let equal = EQUAL.iter().flatten().flat_map(|word| [format!("{word}/{base}"), format!("{base}/{word}")]).map(key);
    let many = (0..cx.rounds(1500)).map(|number| key(format!("{base}/{number}")));
    let keys: Vec<LockKey> = equal.chain(many).collect();
    let taken = take_all(&a, &keys).await?;
    let first = &taken[0].claim;
    a.give_back(first).await?;
    b.take(&b.claim(first.key()), LEASE).await.map(drop)
}

async fn store_tokens_outlive_leases(cx: Context) -> Verdict {
    const BRIEF: Duration = Duration::from_millis(50);
    let [a, b] = cx.stores().await?;
    let [expired, released] = [(); 2].map(|()| a.claim(&cx.key()));
    let before = [a.take(&expired, BRIEF).await?, a.take(&released, LEASE).await?];
    a.give_back(&released).await?;
    sleep(cx.short()).await;
    for (claim, before) in [&expired, &released].into_iter().zip(&before) {
        let next = b.take(&b.claim(claim.key()), LEASE).await?;
        ensure!(
            next.token > last(before),
            "{:?} after the end of {before:?} the next grant was {next:?}, whose token is not greater",
            cx.short()
        );
    }
    Ok(())
}

async fn store_pages_beyond_others(cx: Context) -> Verdict {
    const OTHERS: usize = 250;
    let [a, b] = cx.stores().await?;
    let base = cx.key();
    let others: Vec<LockKey> = (0..OTHERS).map(|number| key(format!("{base}/a{number}"))).collect();
    take_all(&a, &others).await?;
    let owner = format!("owner of {base}");
    let wanted = ["b1", "b2"].map(|name| key(format!("{base}/{name}")));
    for key in &wanted {
        let attempt = a.attempt(&a.claim(key), LEASE).with_holder(Holder::new().with_owner(owner.as_str()));
        a.granted(&attempt, "the key is free").await?;
    }
    let of_owner = LockFilter::new().owner(owner.as_str());
    for filter in [of_owner.clone(), of_owner.prefix(format!("{base}/")), LockFilter::new().prefix(format!("{base}/b"))]
    {
        for size in [1, 2, 50] {
            let size = NonZeroUsize::new(size).expect("not zero");
            let mut seen: Vec<LockKey> = Vec::new();
            while seen.len() < OTHERS {
                let page = b.admin()?.page(&filter, seen.last(), size).await?;
                let is_last = page.len() < size.get();
                seen.extend(page.into_iter().map(|info| info.key));
                if is_last {
                    break;
                }
            }
            ensure!(seen == wanted, "beyond {OTHERS} other locks the list of {filter:?} is {seen:?}");
        }
    }
    Ok(())
}
