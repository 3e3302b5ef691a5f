//! `distlock completions` and `distlock man`: texts that are made from the command line.

use clap::{Args, Command};
use clap_complete::Shell;

use crate::exit;
use crate::failure::Failure;

/// Print the completions of a shell
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Print a man page: of distlock, or of one of its commands
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// The command [default: distlock itself]
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
}

/// Prints the completions.
///
/// # Errors
/// The output fails.
pub(crate) fn completions(args: &CompletionsArgs, mut distlock: Command) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut distlock, "distlock", &mut text);
    Ok(write(&text)?)
}

/// Prints the man page.
///
/// # Errors
/// There is no such command, or the output fails.
pub(crate) fn man(args: &ManArgs, distlock: Command) -> Result<(), Failure> {
    let text = page(distlock, args.command.as_deref())?;
    Ok(write(&text)?)
}

fn page(mut command: Command, name: Option<&str>) -> Result<Vec<u8>, Failure> {
    // Adds the options of all commands to each of them.
    command.build();
    if let Some(name) = name {
        let found = command.find_subcommand(name).cloned();
        let unknown = || Failure::new(exit::USAGE, format!("there is no command {name:?}: see `distlock --help`"));
        command = found.ok_or_else(unknown)?;
    }
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text)?;
    Ok(text)
}

fn write(text: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    out.write_all(text)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn there_is_a_page_for_each_command() {
        let commands: Vec<String> =
            Cli::command().get_subcommands().map(|command| command.get_name().to_owned()).collect();
        assert!(commands.len() >= 11, "{commands:?}");
        for name in commands {
            let text = String::from_utf8(page(Cli::command(), Some(&name)).unwrap()).unwrap();
            assert!(text.contains(".TH distlock"), "{name}: {text}");
        }
        let text = String::from_utf8(page(Cli::command(), None).unwrap()).unwrap();
        assert!(text.contains("DISTLOCK_MONGODB_URI"), "{text}");
        assert_eq!(page(Cli::command(), Some("lock")).unwrap_err().code, exit::USAGE);
    }
}
