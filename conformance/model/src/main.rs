use distlock_model::{configs, search::{explore, Limits}, rules::{Guard, Rules}};
fn main() {
    let mut args = std::env::args().skip(1);
    let which = args.next().unwrap_or_default();
    let max: usize = args.next().and_then(|a| a.parse().ok()).unwrap_or(3_000_000);
    let removed = args.next();
    println!("{}", std::mem::size_of::<distlock_model::state::State>());
    for config in configs::SMALL.iter().filter(|c| which == "all" || c.name == which) {
        let mut rules = Rules::ALL;
        if let Some(g) = removed.as_deref() {
            let g = *Guard::ALL.iter().find(|x| format!("{x:?}") == g).unwrap();
            rules = rules.without(g);
        }
        let c = distlock_model::config::Config { rules, ..*config };
        let r = explore(&c, None, Limits { states: max, until: None }, |_| {});
        println!("{:10} unique {:>9} steps {:>10} depth {:>3} complete {} {:?} {:?}", c.name, r.progress.unique, r.progress.steps, r.progress.depth, r.is_complete, r.elapsed, r.counterexample.as_ref().map(|c| (c.property, c.path.len(), c.is_calm)));
        if let Some(x) = r.counterexample {
            let mut s = distlock_model::state::State::initial(&c);
            for a in x.path { let d = match a { distlock_model::action::Action::Carry(i) | distlock_model::action::Action::Deliver(i) | distlock_model::action::Action::Drop(i)=> format!("{:?}", s.messages.as_slice()[i as usize]), _ => String::new() };
              s = s.after(a, &c).0; println!("  t={} {:?} {}\n        holder {:?} exp {} q {:?}", s.time, a, d, s.server.record.holder, s.server.record.expires, s.server.record.queue.as_slice().iter().map(|t| (t.id, t.seen)).collect::<Vec<_>>()); }
            if x.is_calm { println!("  calm:"); let _ = s.calm(&c, |_, a, n| println!("  t={} {:?} holder {:?} exp {} {:?}", n.time, a, n.server.record.holder, n.server.record.expires, n.clients[0].phase)); }
            if std::env::var("FULL").is_ok() {println!("{s:#?}")};
        }
    }
}
