//! The command line.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use lexopt::{Arg, Parser, ValueExt};

use crate::Failure;

/// Reads the values of options.
#[derive(Debug)]
pub struct Values {
    parser: Parser,
    option: String,
}

impl Values {
    /// The value of the present option.
    ///
    /// # Errors
    /// If there is none, or it is not UTF-8.
    pub fn text(&mut self) -> Result<String, Failure> {
        Ok(self.parser.value()?.string()?)
    }

    /// The value of the present option, a number in a range.
    ///
    /// # Errors
    /// If there is none, or another one.
    pub fn number<T>(&mut self, range: RangeInclusive<T>) -> Result<T, Failure>
    where
        T: FromStr + PartialOrd + Display,
    {
        let text = self.text()?;
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| {
            let (option, from, to) = (&self.option, range.start(), range.end());
            format!("--{option} takes a number from {from} to {to}, not {text:?}").into()
        })
    }
}

/// Reads the command line into `arguments`, which has the defaults. `set` gets the name of each
/// option, and returns whether the program has such an option.
///
/// Returns `None` if `--help` was among them: the usage has been printed.
///
/// # Errors
/// If an option or its value is invalid.
pub fn read_options<A>(
    usage: &str,
    mut arguments: A,
    mut set: impl FnMut(&mut A, &str, &mut Values) -> Result<bool, Failure>,
) -> Result<Option<A>, Failure> {
    let mut values = Values { parser: Parser::from_env(), option: String::new() };
    while let Some(argument) = values.parser.next()? {
        let option = match argument {
            Arg::Long("help") | Arg::Short('h') => {
                print!("{usage}");
                return Ok(None);
            }
            Arg::Long(name) => name.to_owned(),
            other => return Err(format!("{}\n\n{usage}", other.unexpected()).into()),
        };
        values.option.clone_from(&option);
        if !set(&mut arguments, &option, &mut values)? {
            return Err(format!("there is no option --{option}\n\n{usage}").into());
        }
    }
    Ok(Some(arguments))
}
