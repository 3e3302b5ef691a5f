//! The settings from the command line and the environment.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::level::{Level, Seed};

const HELP: &str = "\
CONFORMANCE OPTIONS (use the environment variables if the command also runs other test binaries):
  --level <LEVEL>      smoke, quick, standard or torture  [DISTLOCK_CONFORMANCE_LEVEL, default quick]
  --minutes <MINUTES>  how long the level torture runs    [DISTLOCK_CONFORMANCE_MINUTES, default 10]
  --rounds <NUMBER>    how often the other levels run     [DISTLOCK_CONFORMANCE_ROUNDS, default 1]
  --seed <SEED>        source of all random choices       [DISTLOCK_CONFORMANCE_SEED, default random]
  --report <DIR>       directory for JSON, JUnit and HTML [DISTLOCK_CONFORMANCE_REPORT]
  --pairs              print the matrix of two features each, and run nothing
";

/// An option, and its variable.
const LEVEL: [&str; 2] = ["--level", Level::VARIABLE];
const MINUTES: [&str; 2] = ["--minutes", "DISTLOCK_CONFORMANCE_MINUTES"];
const ROUNDS: [&str; 2] = ["--rounds", "DISTLOCK_CONFORMANCE_ROUNDS"];
const SEED: [&str; 2] = ["--seed", "DISTLOCK_CONFORMANCE_SEED"];
const REPORT: [&str; 2] = ["--report", "DISTLOCK_CONFORMANCE_REPORT"];

/// Has no value.
const PAIRS: &str = "--pairs";

/// The settings of a run.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) level: Level,
    /// How long the level torture runs.
    pub(super) time: Duration,
    /// How many times another level runs, unless a check fails.
    pub(super) rounds: u32,
    /// `None`: a random one.
    pub(super) seed: Option<Seed>,
    pub(super) report: Option<PathBuf>,
    /// Print the matrix of pairs only.
    pub(super) pairs: bool,
    /// The other arguments, after the name of the program.
    pub(super) others: Vec<OsString>,
}

impl Settings {
    /// Reads the process's arguments and environment. Prints our part of the help if requested.
    pub(super) fn from_env() -> Result<Self, String> {
        let settings = Self::read(std::env::args_os(), |name| std::env::var_os(name))?;
        if settings.others.iter().any(|argument| argument == "--help" || argument == "-h") {
            println!("{HELP}");
        }
        Ok(settings)
    }

    fn read(
        arguments: impl IntoIterator<Item = OsString>,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, String> {
        let mut given = [LEVEL, MINUTES, ROUNDS, SEED, REPORT].map(|names| (names, None::<(&str, OsString)>));
        let mut others = Vec::new();
        let (mut arguments, mut pairs) = (arguments.into_iter(), false);
        while let Some(argument) = arguments.next() {
            if argument == PAIRS {
                pairs = true;
                continue;
            }
            let text = argument.to_string_lossy();
            let (name, value) = match text.split_once('=') {
                Some((name, value)) => (name, Some(OsString::from(value))),
                None => (&*text, None),
            };
            match given.iter_mut().find(|([option, _], _)| *option == name) {
                Some(([option, _], slot)) => {
                    let value = value.or_else(|| arguments.next());
                    *slot = Some((*option, value.ok_or_else(|| format!("{option} needs a value"))?));
                }
                None => others.push(argument),
            }
        }
        let [level, minutes, rounds, seed, report] = given
            .map(|([_, name], slot)| slot.or_else(|| Some((name, variable(name).filter(|value| !value.is_empty())?))));
        Ok(Self {
            level: parsed(level)?.unwrap_or_default(),
            time: parsed(minutes)?.map_or(Duration::from_secs(600), |Minutes(time)| time),
            rounds: parsed(rounds)?.map_or(1, |Rounds(number)| number),
            seed: parsed(seed)?,
            report: report.map(|(_, directory)| directory.into()),
            pairs,
            others,
        })
    }
}

struct Minutes(Duration);

impl std::str::FromStr for Minutes {
    type Err = String;

    /// Reads a decimal number.
    fn from_str(text: &str) -> Result<Self, String> {
        let seconds = text.parse::<f64>().ok().map(|minutes| minutes * 60.0);
        let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        time.map(Self).ok_or_else(|| format!("`{text}` is not a number of minutes"))
    }
}

struct Rounds(u32);

impl std::str::FromStr for Rounds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.parse().ok().filter(|number| *number > 0);
        number.map(Self).ok_or_else(|| format!("`{text}` is not a number of rounds"))
    }
}

fn parsed<T: std::str::FromStr<Err = String>>(given: Option<(&str, OsString)>) -> Result<Option<T>, String> {
    let Some((name, value)) = given else { return Ok(None) };
    let value = value.to_string_lossy().parse();
    value.map(Some).map_err(|problem| format!("{name}: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Settings, String> {
        let arguments = ["program"].iter().chain(arguments).map(OsString::from);
        Settings::read(arguments, |name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).into())
        })
    }

    #[test]
    fn nothing_said_is_the_standard() {
        let settings = read(&["--exact", "a::b", "--test-threads=3"], &[("DISTLOCK_CONFORMANCE_LEVEL", "")]).unwrap();
        assert_eq!((settings.level, settings.time), (Level::Quick, Duration::from_secs(600)));
        assert_eq!(settings.rounds, 1);
        assert!(settings.seed.is_none() && settings.report.is_none());
        assert_eq!(settings.others, ["program", "--exact", "a::b", "--test-threads=3"]);
    }

    #[test]
    fn the_matrix_is_requested_by_an_option_without_a_value() {
        let settings = read(&["--pairs", "C5"], &[]).unwrap();
        assert!(settings.pairs && !read(&["C5"], &[]).unwrap().pairs);
        assert_eq!(settings.others, ["program", "C5"]);
    }

    #[test]
    fn options_are_taken_out_and_outrank_variables() {
        let variables = [
            ("DISTLOCK_CONFORMANCE_LEVEL", "smoke"),
            ("DISTLOCK_CONFORMANCE_SEED", "7"),
            ("DISTLOCK_CONFORMANCE_REPORT", "there"),
        ];
        let settings =
            read(&["--level", "torture", "C5", "--minutes=0.5", "--rounds", "50", "--list"], &variables).unwrap();
        assert_eq!((settings.level, settings.time), (Level::Torture, Duration::from_secs(30)));
        assert_eq!(settings.rounds, 50);
        assert_eq!(settings.seed.map(|seed| seed.to_string()).as_deref(), Some("0x0000000000000007"));
        assert_eq!(settings.report, Some("there".into()));
        assert_eq!(settings.others, ["program", "C5", "--list"]);
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (arguments, name) in [
            (["--level", "hell"], "--level"),
            (["--minutes", "-1"], "--minutes"),
            (["--minutes", "long"], "--minutes"),
            (["--rounds", "0"], "--rounds"),
            (["--seed", "x"], "--seed"),
        ] {
            let error = read(&arguments, &[]).unwrap_err();
            assert!(error.contains(name) && error.contains(arguments[1]), "{error}");
        }
        assert!(read(&["--report"], &[]).unwrap_err().contains("--report"));
        assert!(read(&[], &[("DISTLOCK_CONFORMANCE_SEED", "x")]).unwrap_err().contains("_SEED"));
    }
}
