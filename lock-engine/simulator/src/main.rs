//! Runs seeds.

use std::process::ExitCode;
use std::time::Instant;

use distlock_simulator::{Defect, Outcome, run};

const USAGE: &str = "usage: simulator [--seeds N] [--from SEED] [--seed SEED] [--defect NAME] [--defects]";

struct Arguments {
    seeds: u64,
    from: u64,
    one: Option<u64>,
    defect: Option<Defect>,
    all_defects: bool,
}

fn arguments() -> Result<Arguments, lexopt::Error> {
    use lexopt::prelude::*;

    let mut arguments = Arguments { seeds: 2000, from: 0, one: None, defect: None, all_defects: false };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("seeds") => arguments.seeds = parser.value()?.parse()?,
            Long("from") => arguments.from = parser.value()?.parse()?,
            Long("seed") => arguments.one = Some(parser.value()?.parse()?),
            Long("defect") => {
                let name = parser.value()?.string()?;
                let found = Defect::ALL.into_iter().find(|defect| format!("{defect:?}") == name);
                arguments.defect = Some(found.ok_or_else(|| format!("no defect is called {name}; {USAGE}"))?);
            }
            Long("defects") => arguments.all_defects = true,
            _ => return Err(format!("{}; {USAGE}", argument.unexpected()).into()),
        }
    }
    Ok(arguments)
}

fn first_failure(from: u64, seeds: u64, defect: Option<Defect>) -> (usize, Option<Outcome>) {
    let mut grants = 0;
    for seed in from..from + seeds {
        let outcome = run(seed, defect, false);
        grants += outcome.grants();
        if !outcome.complaints.is_empty() {
            return (grants, Some(run(seed, defect, true)));
        }
    }
    (grants, None)
}

fn main() -> ExitCode {
    let Arguments { seeds, from, one, defect, all_defects } = match arguments() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    if all_defects {
        println!(
            "| defect | seeds until it is found | by the linearizability checker | complaint |\n|---|--:|--:|---|"
        );
        for defect in Defect::ALL {
            let (_, found) = first_failure(from, seeds, Some(defect));
            let not_linearizable = (from..from + seeds).find(|seed| !run(*seed, Some(defect), false).linearizable);
            let [found_by, not_linearizable] = [found.as_ref().map(|outcome| outcome.seed), not_linearizable]
                .map(|seed| seed.map_or_else(|| format!("not within {seeds}"), |seed| (seed - from + 1).to_string()));
            let complaint = found.iter().flat_map(|outcome| &outcome.complaints).next();
            let complaint = complaint.and_then(|complaint| complaint.split(": client").next()).unwrap_or_default();
            println!("| `{defect:?}` | {found_by} | {not_linearizable} | {complaint} |");
        }
        return ExitCode::SUCCESS;
    }
    if let Some(seed) = one {
        let outcome = run(seed, defect, true);
        println!("{outcome}");
        return if outcome.complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let began = Instant::now();
    let (grants, failure) = first_failure(from, seeds, defect);
    match failure {
        Some(outcome) => {
            println!("{outcome}");
            ExitCode::FAILURE
        }
        None => {
            let per_minute = 60.0 * seeds as f64 / began.elapsed().as_secs_f64();
            println!("{seeds} seeds, {grants} grants, no violation; {per_minute:.0} seeds per minute");
            ExitCode::SUCCESS
        }
    }
}
