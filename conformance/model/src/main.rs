//! Explores the protocol's model, and what fails without each of its rules.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use distlock_model::config::Config;
use distlock_model::configs;
use distlock_model::explain::timeline;
use distlock_model::removals::{REMOVALS, Removal, UNSEEN};
use distlock_model::rules::Guard;
use distlock_model::search::{Limits, Progress, Report, explore};

const HELP: &str = "\
Explores the model of the lease protocol, and what fails without each of its rules.

usage: distlock-model [OPTION]...

  --size small|large     small (default): what the tests explore, completely;
                         large: more faults and more time, as far as the limits allow
  --config NAME          only this configuration; can be repeated
  --max-states N         stop a configuration after N different states (default 4000000);
                         4000000 states take up to 2 GiB of memory
  --minutes N            stop the whole run after N minutes; the remaining time is shared
                         evenly among the remaining configurations (default: no limit)
  --explain RULE         a rule such as R12, or a guard such as ReleaseById: the shortest
                         counterexamples without it, as timelines; nothing else is run
  --no-removals          omit the table of removed rules
  --list                 list the configurations and the guards
  --help                 print this text

Exit status: 0 if every property holds, and fails without the guard that it needs; 1 if not; 2 for bad arguments.
";

/// The command line.
struct Arguments {
    large: bool,
    configs: Vec<String>,
    states: usize,
    minutes: Option<u64>,
    explain: Option<String>,
    removals: bool,
    list: bool,
}

fn arguments() -> Result<Option<Arguments>, lexopt::Error> {
    use lexopt::prelude::*;

    let mut arguments = Arguments {
        large: false,
        configs: Vec::new(),
        states: 4_000_000,
        minutes: None,
        explain: None,
        removals: true,
        list: false,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("size") => {
                arguments.large = match &*parser.value()?.string()? {
                    "small" => false,
                    "large" => true,
                    other => return Err(format!("--size is small or large, not {other:?}").into()),
                }
            }
            Long("config") => arguments.configs.push(parser.value()?.string()?),
            Long("max-states") => arguments.states = parser.value()?.parse()?,
            Long("minutes") => arguments.minutes = Some(parser.value()?.parse()?),
            Long("explain") => arguments.explain = Some(parser.value()?.string()?),
            Long("no-removals") => arguments.removals = false,
            Long("list") => arguments.list = true,
            Long("help") | Short('h') => return Ok(None),
            _ => return Err(argument.unexpected()),
        }
    }
    let most = u32::MAX as usize;
    if arguments.states == 0 || arguments.states > most {
        return Err(format!("--max-states is between 1 and {most}").into());
    }
    Ok(Some(arguments))
}

fn main() -> ExitCode {
    let outcome = match arguments() {
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Ok(Some(arguments)) => run(&arguments),
        Err(error) => Err(error.to_string()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("distlock-model: {error}; see --help");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool, String> {
    let all = if arguments.large { configs::large() } else { configs::SMALL.to_vec() };
    if let Some(name) = arguments.configs.iter().find(|name| all.iter().all(|config| config.name != **name)) {
        let names: Vec<&str> = all.iter().map(|config| config.name).collect();
        return Err(format!("there is no configuration {name:?}; the configurations are {}", names.join(", ")));
    }
    if arguments.list {
        list(&all);
        return Ok(true);
    }
    if let Some(rule) = &arguments.explain {
        return explain(rule);
    }
    let chosen: Vec<&Config> = all
        .iter()
        .filter(|config| arguments.configs.is_empty() || arguments.configs.iter().any(|name| name == config.name))
        .collect();
    let mut sound = explored(&chosen, arguments);
    if arguments.removals {
        println!();
        sound &= removed();
    }
    Ok(sound)
}

fn explored(chosen: &[&Config], arguments: &Arguments) -> bool {
    println!("{:<14}{:>12}{:>13}{:>7}{:>9}  violation", "configuration", "unique", "steps", "depth", "s");
    let end = arguments.minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    let mut sound = true;
    for (at, config) in chosen.iter().enumerate() {
        let rest = (chosen.len() - at) as u32;
        let until = end.map(|end| Instant::now() + end.saturating_duration_since(Instant::now()) / rest);
        let mut reporter = Reporter::new(config.name);
        let report =
            explore(config, None, Limits { states: arguments.states, until }, |progress| reporter.report(progress));
        reporter.clear();
        let Report { progress: Progress { unique, steps, depth }, is_complete, elapsed, counterexample, .. } = report;
        let found = match &counterexample {
            None if is_complete => "none".into(),
            None => "none so far (limit)".into(),
            Some(found) => format!("{:?}", found.property),
        };
        let seconds = elapsed.as_secs_f64();
        println!("{:<14}{unique:>12}{steps:>13}{depth:>7}{seconds:>9.1}  {found}", config.name);
        if let Some(found) = counterexample {
            sound = false;
            print!("{}", timeline(config, &found));
        }
    }
    sound
}

fn removed() -> bool {
    println!("{:<24}{:<14}{:<14}{:>6}{:>12}{:>9}", "without", "fails", "in", "steps", "unique", "s");
    let mut sound = true;
    for removal in REMOVALS {
        let guard = removal.guard.to_string();
        let mut reporter = Reporter::new(&guard);
        let report = removal.search(|progress| reporter.report(progress));
        reporter.clear();
        let (falls, steps) = match &report.counterexample {
            Some(found) => (format!("{:?}", found.property), found.path.len().to_string()),
            None => ("nothing".into(), String::new()),
        };
        sound &= report.counterexample.is_some();
        let (unique, seconds) = (report.progress.unique, report.elapsed.as_secs_f64());
        println!("{guard:<24}{falls:<14}{:<14}{steps:>6}{unique:>12}{seconds:>9.1}", removal.config);
    }
    sound
}

fn explain(rule: &str) -> Result<bool, String> {
    let named = |guard: &&Removal| {
        format!("R{}", guard.guard.rule()).eq_ignore_ascii_case(rule)
            || format!("{:?}", guard.guard).eq_ignore_ascii_case(rule)
    };
    let removals: Vec<&Removal> = REMOVALS.iter().filter(named).collect();
    let number = rule.trim_start_matches(['R', 'r']).parse::<u8>();
    let unseen: Vec<&str> =
        UNSEEN.iter().filter(|(unseen, _)| number.as_ref() == Ok(unseen)).map(|(_, reason)| *reason).collect();
    if removals.is_empty() && unseen.is_empty() {
        return Err(format!("there is no rule or guard {rule:?}; use R1 to R31, or a name from --list"));
    }
    let mut sound = true;
    for removal in removals {
        let guard = removal.guard.to_string();
        let mut reporter = Reporter::new(&guard);
        let report = removal.search(|progress| reporter.report(progress));
        reporter.clear();
        println!("without {guard}, configuration {}:", removal.config);
        match &report.counterexample {
            Some(found) => print!("{}", timeline(&removal.config(), found)),
            None => println!("    every property holds"),
        }
        sound &= report.counterexample.is_some();
    }
    for reason in unseen {
        println!("not seen by the model: {reason}");
    }
    Ok(sound)
}

fn list(all: &[Config]) {
    println!("configurations");
    for config in all {
        let Config { name, clients, acquisitions, horizon, .. } = config;
        println!("  {name:<14} {clients} processes, {acquisitions} acquisitions each, {horizon} ticks");
    }
    println!("guards");
    for guard in Guard::ALL {
        println!("  {guard}");
    }
}

/// Reports the progress of a search: in place on a terminal, otherwise now and then.
struct Reporter<'a> {
    name: &'a str,
    begun: Instant,
    last: Instant,
    in_place: bool,
}

impl<'a> Reporter<'a> {
    fn new(name: &'a str) -> Self {
        let now = Instant::now();
        Self { name, begun: now, last: now, in_place: std::io::stderr().is_terminal() }
    }

    fn report(&mut self, progress: &Progress) {
        let every = Duration::from_millis(if self.in_place { 200 } else { 15_000 });
        if self.last.elapsed() < every {
            return;
        }
        self.last = Instant::now();
        let Progress { steps, unique, depth } = progress;
        let seconds = self.begun.elapsed().as_secs();
        let (begin, end) = if self.in_place { ("\r\x1b[2K", "") } else { ("", "\n") };
        eprint!("{begin}{}: {unique} states, {steps} steps, depth {depth}, {seconds} s{end}", self.name);
        let _ = std::io::stderr().flush();
    }

    fn clear(&self) {
        if self.in_place {
            eprint!("\r\x1b[2K");
        }
    }
}
