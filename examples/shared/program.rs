//! The command line and the `main` of every example.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::process::ExitCode;

use lexopt::{Arg, Parser, ValueExt};
use serde::de::DeserializeOwned;

use crate::child::{Orders, part};
use crate::{Failure, Interrupt, Outcome, wrapped};

/// An example program.
#[derive(Debug)]
pub struct Program {
    /// The name of its binary.
    pub name: &'static str,
    /// What it shows, in two sentences.
    pub about: &'static str,
    /// Its options, besides `--help`.
    pub options: &'static [Opt],
}

/// An option of a program.
#[derive(Debug)]
pub struct Opt {
    name: &'static str,
    kind: Kind,
    help: &'static str,
}

#[derive(Debug)]
enum Kind {
    Flag,
    Text(&'static str),
    Number(u64, RangeInclusive<u64>),
}

/// The option `--mongodb` of the programs that need a server.
pub const MONGODB: Opt = Opt::text("mongodb", "URI", "a replica set; without it, one is found or started for the run");

impl Opt {
    /// An option without a value.
    #[must_use]
    pub const fn flag(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: Kind::Flag, help }
    }

    /// An option with a text, which the help calls `value`.
    #[must_use]
    pub const fn text(name: &'static str, value: &'static str, help: &'static str) -> Self {
        Self { name, kind: Kind::Text(value), help }
    }

    /// An option with a number in a range.
    #[must_use]
    pub const fn number(name: &'static str, default: u64, range: RangeInclusive<u64>, help: &'static str) -> Self {
        Self { name, kind: Kind::Number(default, range), help }
    }

    fn usage(&self) -> (String, String) {
        let Self { name, kind, help } = self;
        match kind {
            Kind::Flag => (format!("--{name}"), (*help).to_owned()),
            Kind::Text(value) => (format!("--{name} {value}"), (*help).to_owned()),
            Kind::Number(default, range) => {
                let (from, to) = (range.start(), range.end());
                (format!("--{name} N"), format!("{help}, {from} to {to} (default {default})"))
            }
        }
    }
}

/// The command line: the values of the options, given or by default.
#[derive(Debug, Default)]
pub struct Given {
    texts: BTreeMap<&'static str, String>,
    numbers: BTreeMap<&'static str, u64>,
}

impl Given {
    /// Whether the option was given.
    #[must_use]
    pub fn flag(&self, name: &str) -> bool {
        self.texts.contains_key(name)
    }

    /// The text of an option, if it was given.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.texts.get(name).map(String::as_str)
    }

    /// The number of an option.
    ///
    /// # Panics
    /// If the program has no such option with a number.
    #[must_use]
    pub fn number(&self, name: &str) -> u64 {
        self.numbers[name]
    }
}

impl Program {
    /// Runs the program and returns its exit code.
    ///
    /// A process that was started as a child plays its part with `child`. Otherwise `show` runs the
    /// program, unless help was wanted. An error goes to standard error, under the program's name.
    pub async fn run<P: DeserializeOwned>(
        &self,
        show: impl AsyncFnOnce(Given, Interrupt) -> Result<Outcome, Failure>,
        child: impl AsyncFnOnce(String, P, Orders) -> Result<(), Failure>,
    ) -> ExitCode {
        let outcome = async {
            if let Some(((name, part), orders)) = part().await? {
                return child(name, part, orders).await.map(|()| Outcome::Proved);
            }
            match self.read(Parser::from_env())? {
                Some(given) => show(given, Interrupt::listen()).await,
                None => Ok(Outcome::Proved),
            }
        };
        match outcome.await {
            Ok(outcome) => outcome.into(),
            Err(error) => {
                let why = error.source().map(|source| format!(": {source}")).unwrap_or_default();
                eprintln!("{}: {error}{why}", self.name);
                ExitCode::FAILURE
            }
        }
    }

    /// Reads the command line. Returns `None` if help was wanted: it has been printed.
    fn read(&self, mut parser: Parser) -> Result<Option<Given>, Failure> {
        let mut given = Given::default();
        for option in self.options {
            if let Kind::Number(default, _) = option.kind {
                given.numbers.insert(option.name, default);
            }
        }
        while let Some(argument) = parser.next()? {
            let name = match argument {
                Arg::Long("help") | Arg::Short('h') => {
                    print!("{}", self.usage());
                    return Ok(None);
                }
                Arg::Long(name) => name.to_owned(),
                other => return Err(format!("{}\n\n{}", other.unexpected(), self.usage()).into()),
            };
            let option = self.options.iter().find(|option| option.name == name);
            let option = option.ok_or_else(|| format!("there is no option --{name}\n\n{}", self.usage()))?;
            let text = match option.kind {
                Kind::Flag => String::new(),
                Kind::Text(_) | Kind::Number(..) => parser.value()?.string()?,
            };
            if let Kind::Number(_, range) = &option.kind {
                let number = text.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| {
                    format!("--{name} takes a number from {} to {}, not {text:?}", range.start(), range.end())
                })?;
                given.numbers.insert(option.name, number);
            }
            given.texts.insert(option.name, text);
        }
        Ok(Some(given))
    }

    fn usage(&self) -> String {
        let mut usage = format!("usage: {} [OPTION]...\n\n{}\n\n", self.name, wrapped(self.about, ""));
        let mut lines: Vec<_> = self.options.iter().map(Opt::usage).collect();
        lines.push(("--help".to_owned(), "this text".to_owned()));
        let width = lines.iter().map(|(option, _)| option.len()).max().unwrap_or(0);
        for (option, help) in lines {
            let _ = writeln!(usage, "  {option:<width$}  {help}");
        }
        usage
    }
}
