//! Calls, releases, departures and forced releases at random, beside a model of one key: a list of
//! holders and a queue. Each step of the provider must grant what the model grants, and no other.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::task::{Poll, Waker};

use distlock_api::{FencingToken, LockAdmin, LockEvent, LockEvents, LockGuard, LockProvider, Loss, Mode};
use distlock_memory::MemoryProvider;
use futures_util::{FutureExt, StreamExt};

use super::kit::{Exclusive, Shared, Waiting, assert_idle, call, key, permits, poll};

type Id = usize;

/// One key, as the contract describes it.
#[derive(Default)]
struct Model {
    holders: Vec<(Id, Mode)>,
    queue: VecDeque<(Id, Mode)>,
}

impl Model {
    fn fits(&self, mode: Mode) -> bool {
        mode.fits(self.holders.iter().map(|(_, held)| *held))
    }

    fn call(&mut self, id: Id, mode: Mode) {
        self.queue.push_back((id, mode));
        self.serve();
    }

    fn leave(&mut self, id: Id) {
        self.holders.retain(|(other, _)| *other != id);
        self.queue.retain(|(other, _)| *other != id);
        self.serve();
    }

    fn serve(&mut self) {
        while let Some(first) = self.queue.front().copied().filter(|(_, mode)| self.fits(*mode)) {
            self.queue.pop_front();
            self.holders.push(first);
        }
    }

    fn holds(&self, id: Id) -> bool {
        self.holders.iter().any(|(holder, _)| *holder == id)
    }
}

/// A call of the provider.
enum Call<'a> {
    Waits(Waiting<'a>),
    Held(LockGuard),
}

/// The provider, the model, and the calls that both know.
struct Run<'a> {
    locks: &'a MemoryProvider,
    model: Model,
    calls: BTreeMap<Id, Call<'a>>,
    next: Id,
    events: LockEvents,
    /// The greatest token of an event.
    reported: Option<FencingToken>,
    open: i64,
    random: Random,
}

struct Random(u64);

impl Random {
    /// Returns a number below `end`.
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }
}

impl Run<'_> {
    fn call(&mut self) {
        let modes = [Exclusive, Shared, Shared, Shared, permits(1, 3), permits(1, 3), permits(2, 3), permits(2, 5)];
        let mode = modes[self.random.below(modes.len())];
        let id = self.next;
        self.next += 1;
        self.model.call(id, mode);
        self.calls.insert(id, Call::Waits(call(self.locks, mode)));
        self.look(id);
    }

    /// Polls one call, which is granted if the model says so.
    fn look(&mut self, id: Id) {
        let Some(Call::Waits(waiting)) = self.calls.get_mut(&id) else { return };
        let granted = match poll(waiting, Waker::noop()) {
            Poll::Ready(guard) => self.calls.insert(id, Call::Held(guard)).is_some(),
            Poll::Pending => false,
        };
        assert_eq!(granted, self.model.holds(id), "call {id} of {:?}, {:?}", self.model.holders, self.model.queue);
    }

    fn some_call(&mut self) -> Option<Id> {
        let at = self.random.below(self.calls.len().max(1));
        self.calls.keys().nth(at).copied()
    }

    /// Drops a guard, a call that waits, or one that is granted and has not looked.
    fn leave(&mut self) {
        let Some(id) = self.some_call() else { return };
        drop(self.calls.remove(&id));
        self.model.leave(id);
    }

    /// Takes a share, or the key, away from one holder.
    fn force(&mut self) {
        let Some(id) = self.some_call() else { return };
        let Some(Call::Held(guard)) = self.calls.get(&id) else { return };
        let info = self.locks.inspect(&key()).now_or_never().unwrap().unwrap().expect("held");
        let of_guard = info.holders.iter().find(|holder| holder.token == guard.fencing_token());
        let victim = of_guard.map_or_else(|| info.id.clone().unwrap(), |holder| holder.id.clone());
        let taken = self.locks.force_release_holder(&key(), &victim, "test").now_or_never().unwrap().unwrap();
        assert_eq!(taken, Some(info));
        assert_eq!(guard.loss(), Some(Loss::ForceReleased));
        self.model.leave(id);
        drop(self.calls.remove(&id));
    }

    /// Compares what can be seen from outside.
    fn check(&mut self) {
        let info = self.locks.inspect(&key()).now_or_never().unwrap().unwrap();
        let holders = info.map_or_else(Vec::new, |info| match info.mode() {
            Exclusive => vec![Exclusive],
            _ => info.holders.iter().map(|holder| holder.mode).collect(),
        });
        assert_eq!(holders, self.model.holders.iter().map(|(_, mode)| *mode).collect::<Vec<_>>());
        let held = self.calls.values().filter(|call| matches!(call, Call::Held(_))).count();
        let accounting = self.locks.accounting();
        assert!(accounting.balances(), "{accounting:?}");
        assert_eq!((accounting.held, accounting.waiting), (held as u64, (self.calls.len() - held) as u64));
        while let Some(Some(event)) = self.events.next().now_or_never() {
            match event.unwrap() {
                LockEvent::Granted { token, .. } => {
                    assert!(self.reported < Some(token), "C5: {token} after {:?}", self.reported);
                    self.reported = Some(token);
                    self.open += 1;
                }
                LockEvent::Released { .. } | LockEvent::ForceReleased { .. } => self.open -= 1,
                other => panic!("unexpected: {other:?}"),
            }
        }
    }
}

#[test]
fn c26_c27_c28_each_step_grants_what_the_model_grants() {
    for seed in 1..=200 {
        let locks = MemoryProvider::new();
        let events = locks.watch().now_or_never().unwrap().unwrap();
        let mut run = Run {
            locks: &locks,
            model: Model::default(),
            calls: BTreeMap::new(),
            next: 0,
            events,
            reported: None,
            open: 0,
            random: Random(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed)),
        };
        for _ in 0..300 {
            match run.random.below(10) {
                0..4 => run.call(),
                4..6 => {
                    if let Some(id) = run.some_call() {
                        run.look(id);
                    }
                }
                6 => run.force(),
                _ => run.leave(),
            }
            run.check();
        }
        while !run.calls.is_empty() {
            run.leave();
            run.check();
        }
        assert_eq!(run.open, 0, "each grant that was reported has an end");
        assert_idle(&locks);
    }
}
