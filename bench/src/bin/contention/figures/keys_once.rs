//! B13: a million keys in memory, each used once, in a process of its own per contender and round.

use std::time::Duration;

use distlock_bench::{Contender as _, Fluent, Keyed, Lockable};

use super::{Bench, rotated};
use crate::Outcome;
use crate::fleet::{self, Worker};
use crate::locks::{Contender, Settings};
use crate::report::{Bound, Figure};
use crate::worker::protocol::Task;

const LEFT: &str = "left behind";
const TIME: &str = "time per key";

pub(super) async fn run(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = bench.figure(13, "in memory, 1 M distinct keys used once");
    let rounds = bench.choose(3, 9);
    for round in 0..rounds {
        bench.progress(format_args!("round {} of {rounds}", round + 1));
        for who in rotated(&[Keyed::NAME, Lockable::NAME, Fluent::NAME], round) {
            let task = Task::KeysOnce { who: who.to_owned() };
            let worker = Worker::start(&bench.spec(Contender::Ours, Settings::new(true), task)).await?;
            let report = worker.report(fleet::window(Duration::ZERO)).await?;
            let measured = report.keys_once.ok_or("the child measured nothing")?;
            figure.push(who, LEFT, "KiB", measured.left_bytes as f64 / 1024.0);
            figure.push(who, TIME, "ns", measured.ns);
        }
    }
    figure.judge(LEFT, figure.median(Fluent::NAME, LEFT), "KiB", Bound::Most(1024.0));
    let peers = [Keyed::NAME, Lockable::NAME].map(|who| (who.to_owned(), figure.median(who, TIME)));
    let [one, other] = peers;
    let best = if one.1 < other.1 { one } else { other };
    figure.judge_ratio(TIME, figure.median(Fluent::NAME, TIME), "ns", best, Bound::Most(0.8));
    figure.note("Left behind: resident memory of the process, after less before. The time includes making the key; it is the median over slices of 10,000 keys.");
    Ok(figure)
}
