//! C26: shared locks. C31: no upgrade. C5: tokens over all modes.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use distlock_api::{Acquired, LockKey, Mode, Wait};
use futures_util::future::try_join_all;
use tokio::task::JoinSet;

use super::{ensure_kept, give_back, granted, lasting, permits, refused};
use crate::bounded::{SOON, is_too_late, within};
use crate::check::checks;
use crate::client::Client;
use crate::context::{Context, all_passed};
use crate::failure::{Failure, Verdict, ensure, located_at_caller};
use crate::history::Expected;

checks! {
    C26 readers_hold_together Smoke [Shared]
        "Shared guards of several clients hold a key at the same time, also if they take a new key \
         at the same moment, and it is free when the last of them is released. A failure means \
         that readers keep each other out, or that the release of one frees the key of the others.";
    C26 writer_holds_alone Smoke [Shared]
        "No shared guard is granted beside an exclusive one, and no exclusive one beside a shared \
         one. A failure means that a writer works while others read.";
    C26 readers_of_one_client [Shared]
        "Many shared guards of one client hold a key together, each with a token of its own, until \
         the last of them is released. A failure means that a reader is counted for another one.";
    C26 readers_and_writers Smoke [Shared]
        "Tasks of several clients that read and write under one lock never write beside others, \
         and read together. A failure means that a writer had company.";
    C5 across_modes [Shared]
        "The token of a writer is greater than those of all readers before it, theirs are greater \
         than those of the writer before them, and no two readers have the same. A failure means \
         that a fence cannot tell them apart.";
    C31 holder_waits_for_itself Smoke [Shared]
        "A holder that requests its key again in another mode waits as others do, keeps what it \
         has, and is granted the other mode after its release. A failure means that a guard is \
         converted or lost, or that its holder is stuck.";
    C31 two_readers_that_want_to_write [Shared]
        "Two readers that both request the key exclusively time out, and each is granted it after \
         both have released. A failure means that one of them was upgraded beside the other, or \
         that a request that has timed out blocks the key.";
}

async fn readers_hold_together(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let (key, mut readers) = (cx.key(), Vec::new());
    for client in [&a, &b, &c, &a] {
        readers.push(granted(client, &key, Mode::Shared, "only readers hold the key").await?);
    }
    ensure_kept(&readers, "readers were granted the key beside others")?;
    while let Some(reader) = readers.pop() {
        refused(&b, &key, Mode::Exclusive, "readers hold the key").await?;
        give_back(reader).await?;
        ensure_kept(&readers, "another reader released the key")?;
    }
    let writer = granted(&b, &key, Mode::Exclusive, "all readers have released the key").await?;
    drop(writer);
    for _ in 0..cx.rounds(12) {
        readers_begin_together(&[&a, &b, &c], &cx.key()).await?;
    }
    cx.verdict(&[key], Expected { grants: 5, contended: 4 })
}

/// Ensures that single attempts of all clients at a new key, at the same moment, are granted.
async fn readers_begin_together(clients: &[&Client], key: &LockKey) -> Verdict {
    let attempts = clients.iter().map(|client| granted(client, key, Mode::Shared, "only readers request the key"));
    let readers = try_join_all(attempts).await?;
    ensure_kept(&readers, "readers were granted a new key at the same moment")?;
    for reader in readers {
        give_back(reader).await?;
    }
    Ok(())
}

async fn writer_holds_alone(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    for _ in 0..2 {
        let writer = a.take(&key, lasting(Mode::Exclusive)).await?;
        for client in [&a, &b] {
            refused(client, &key, Mode::Shared, "a writer holds the key").await?;
        }
        give_back(writer).await?;
        let reader = a.take(&key, lasting(Mode::Shared)).await?;
        for client in [&a, &b] {
            refused(client, &key, Mode::Exclusive, "a reader holds the key").await?;
        }
        give_back(reader).await?;
    }
    cx.verdict(&[key], Expected { grants: 4, contended: 8 })
}

async fn readers_of_one_client(cx: Context) -> Verdict {
    const READERS: usize = 16;
    let [a, b] = cx.clients().await?;
    let (key, mut readers) = (cx.key(), Vec::new());
    for _ in 0..READERS {
        readers.push(a.take(&key, lasting(Mode::Shared)).await?);
    }
    let tokens: HashSet<_> = readers.iter().map(|reader| reader.fencing_token()).collect();
    ensure!(tokens.len() == READERS, "{READERS} readers of one client have {} tokens", tokens.len());
    let writer = b.spawn_take(&key, lasting(Mode::Exclusive));
    b.until_waiting(1).await?;
    while readers.len() > 1 {
        give_back(readers.remove(0)).await?;
        ensure_kept(&readers, "another reader of the client released the key")?;
        ensure!(!writer.is_finished(), "a writer was granted the key beside {} readers", readers.len());
    }
    for reader in readers {
        give_back(reader).await?;
    }
    let (writer, _) = within(SOON, "a writer to get the key after the last reader", writer.guard()).await??;
    let most = tokens.into_iter().max();
    ensure!(Some(writer.fencing_token()) > most, "token {} follows {most:?} of a reader", writer.fencing_token());
    drop(writer);
    cx.verdict(&[key], Expected { grants: READERS + 1, contended: 0 })
}

/// Who is inside, counted outside of the lock.
#[derive(Default)]
struct Room {
    readers: AtomicU64,
    writers: AtomicU64,
    /// The most readers that were inside at once.
    most: AtomicU64,
}

impl Room {
    /// Enters, stays for a while, and leaves.
    #[track_caller]
    fn visit(&self, mode: Mode) -> impl Future<Output = Verdict> {
        located_at_caller(async move {
            let own = if mode.is_exclusive() { &self.writers } else { &self.readers };
            let present = own.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(present, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(2)).await;
            let (readers, writers) = (self.readers.load(Ordering::SeqCst), self.writers.load(Ordering::SeqCst));
            own.fetch_sub(1, Ordering::SeqCst);
            ensure!(
                writers == 0 || writers + readers == 1,
                "{writers} writers and {readers} readers held the key at once"
            );
            Ok(())
        })
    }
}

async fn readers_and_writers(cx: Context) -> Verdict {
    const TASKS: usize = 9;
    let clients: [Client; 3] = cx.clients().await?;
    let (key, room, rounds) = (cx.key(), Arc::new(Room::default()), cx.rounds(12));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (client, key, room) = (clients[task % clients.len()].clone(), key.clone(), Arc::clone(&room));
        tasks.spawn(async move {
            for round in 0..rounds {
                let mode = if (task + round) % 4 == 0 { Mode::Exclusive } else { Mode::Shared };
                let guard = client.take(&key, lasting(mode)).await?;
                room.visit(mode).await?;
                give_back(guard).await?;
            }
            Ok(())
        });
    }
    let worked = all_passed(tasks).await;
    // The verdict on the history shows the calls.
    cx.verdict(std::slice::from_ref(&key), Expected::default())?;
    worked?;
    // Readers of slow clients may never have met.
    let (mut readers, most) = (Vec::new(), room.most.load(Ordering::SeqCst));
    for client in &clients {
        let why = format!("at most {most} readers held the key together, and {} do now", readers.len());
        readers.push(granted(client, &key, Mode::Shared, &why).await?);
    }
    Ok(())
}

async fn across_modes(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, mut before) = (cx.key(), None);
    let mut modes = vec![Mode::Shared, Mode::Exclusive];
    modes.extend(cx.profile().capabilities().permits.then_some(permits(1, 2)));
    for mode in modes.iter().cycle().take(modes.len() * cx.rounds(5)) {
        let mut guards = vec![a.take(&key, lasting(*mode)).await?];
        if !mode.is_exclusive() {
            guards.push(b.take(&key, lasting(*mode)).await?);
        }
        let tokens: Vec<_> = guards.iter().map(|guard| guard.fencing_token()).collect();
        let is_above = tokens.iter().all(|token| Some(*token) > before);
        ensure!(is_above, "the tokens {tokens:?} ({mode}) follow token {before:?} of another mode");
        ensure!(tokens.len() < 2 || tokens[0] != tokens[1], "two guards ({mode}) have the tokens {tokens:?}");
        before = tokens.into_iter().max();
        for guard in guards {
            give_back(guard).await?;
        }
    }
    Ok(())
}

/// Requests a key for a moment, and expects that it is not granted. A store that is too slow for
/// this moment has longer ones.
#[track_caller]
fn ensure_times_out(client: &Client, key: &LockKey, mode: Mode, why: &str) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let mut moment = Duration::from_millis(300);
        loop {
            let acquiring = client.acquire_with(key.clone(), lasting(mode).with_wait(Wait::UpTo(moment)));
            match within(moment + SOON, "an acquisition to time out", acquiring).await? {
                Ok(Acquired::Busy(_)) => return Ok(()),
                Ok(Acquired::Held(guard)) => {
                    let token = guard.fencing_token();
                    return Err(Failure::new(format!("{why}, and a request ({mode}) was granted, token {token}")));
                }
                Err(error) if is_too_late(&error) && moment < SOON => moment *= 3,
                Err(error) => return Err(error.into()),
            }
        }
    })
}

async fn holder_waits_for_itself(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let mut pairs = vec![(Mode::Shared, Mode::Exclusive), (Mode::Exclusive, Mode::Shared)];
    if cx.profile().capabilities().permits {
        pairs.extend([(permits(1, 2), Mode::Exclusive), (permits(1, 2), permits(2, 2)), (Mode::Shared, permits(1, 2))]);
    }
    for (held, wanted) in pairs {
        let key = cx.key();
        let guard = a.take(&key, lasting(held)).await?;
        refused(&a, &key, wanted, &format!("the same client holds the key ({held})")).await?;
        ensure_times_out(&a, &key, wanted, &format!("the same client holds the key ({held})")).await?;
        ensure_kept([&guard], "its holder requested the key again")?;
        refused(&b, &key, wanted, &format!("another client holds the key ({held})")).await?;
        give_back(guard).await?;
        let next = a.take_within(SOON, &key, lasting(wanted)).await?;
        give_back(next).await?;
    }
    Ok(())
}

async fn two_readers_that_want_to_write(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let readers = [a.take(&key, lasting(Mode::Shared)).await?, b.take(&key, lasting(Mode::Shared)).await?];
    let why = "two readers hold the key";
    let (of_a, of_b) = tokio::join!(
        ensure_times_out(&a, &key, Mode::Exclusive, why),
        ensure_times_out(&b, &key, Mode::Exclusive, why)
    );
    of_a.and(of_b)?;
    ensure_kept(&readers, "both readers requested the key exclusively")?;
    for reader in readers {
        give_back(reader).await?;
    }
    for client in [&a, &b] {
        give_back(client.take_within(SOON, &key, lasting(Mode::Exclusive)).await?).await?;
    }
    a.until_idle().await?;
    b.until_idle().await
}
