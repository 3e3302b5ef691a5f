//! The command line.

use std::path::PathBuf;

use crate::Outcome;
use crate::figures::Id;

/// What `--help` prints.
pub const HELP: &str = "\
Measures distlock and its peers, interleaved, on a replica set of three members that it starts by itself.

  contention [OPTIONS]

  --figures B1,B5   only these (B1 to B26, S2 to S8, T1 to T4; default all)
  --quick           fewer and shorter rounds, to see whether everything works
  --out DIR         where table, JSON and plots go (default: results, beside this program's sources)
  --uri URI         a replica set of yours instead. B10 and B19, which stop primaries, start their own in any case;
                    B18 needs a server with enableTestCommands=1, B22 servers of this machine
                    B1 to B6 also need PostgreSQL: DISTLOCK_POSTGRES_URI, else a server that is started as well
  --trace           no figures, but a trace of a hand-over chain through four processes
";

/// What to do.
#[derive(Debug, PartialEq)]
pub struct Options {
    /// The figures to make.
    pub figures: Vec<Id>,
    /// Fewer and shorter rounds.
    pub quick: bool,
    /// Where results go.
    pub out: PathBuf,
    /// A replica set of the user.
    pub uri: Option<String>,
    /// A trace of a hand-over chain instead of figures.
    pub trace: bool,
    /// Only the help.
    pub help: bool,
}

impl Options {
    /// Reads the arguments that follow the program's name.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Outcome<Self> {
        let mut options = Self {
            figures: Id::ALL.to_vec(),
            quick: false,
            out: PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/results")),
            uri: None,
            trace: false,
            help: false,
        };
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--quick" => options.quick = true,
                "--trace" => options.trace = true,
                "--help" | "-h" => options.help = true,
                "--out" => options.out = value()?.into(),
                "--uri" => options.uri = Some(value()?),
                "--figures" => {
                    options.figures = value()?.split(',').map(|name| name.trim().parse()).collect::<Outcome<_>>()?;
                    options.figures.sort_unstable();
                    options.figures.dedup();
                }
                _ => return Err(format!("unknown argument {argument}; --help lists those that there are").into()),
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Outcome<Options> {
        Options::parse(arguments.iter().map(|argument| (*argument).to_owned()))
    }

    #[test]
    fn all_figures_unless_some_are_named() {
        assert_eq!(parse(&[]).unwrap().figures, Id::ALL);
        let options = parse(&["--quick", "--figures", "t3,b5, B1,B5"]).unwrap();
        assert_eq!(options.figures, [Id::B(1), Id::B(5), Id::T(3)]);
        assert!(options.quick && !options.trace);
        assert_eq!(parse(&["--figures", "t4,S7,s2"]).unwrap().figures, [Id::S(2), Id::S(7), Id::T(4)]);
        assert_eq!(parse(&["--figures", "T1,b22,B18"]).unwrap().figures, [Id::B(18), Id::B(22), Id::T(1)]);
    }

    #[test]
    fn nonsense_is_refused() {
        for arguments in [
            &["--figures"][..],
            &["--figures", "B0"],
            &["--figures", "B26"],
            &["--figures", "S1"],
            &["--figures", "S8"],
            &["--figures", "T5"],
            &["--figures", "B01"],
            &["--figures", "5"],
            &["--fast"],
            &["--uri"],
        ] {
            assert!(parse(arguments).is_err(), "{arguments:?}");
        }
    }
}
