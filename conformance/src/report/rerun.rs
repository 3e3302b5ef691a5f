//! The command that repeats one check.

use std::path::Path;

use crate::level::{Level, Plan};

/// Returns a command line that runs only this check, with this seed. `level` is the lowest at which
/// the check runs.
pub(super) fn command(test: &str, level: Level, plan: Plan) -> String {
    let executable = std::env::current_exe().unwrap_or_default();
    let package = std::env::var("CARGO_PKG_NAME").ok();
    let program = program(&executable, package.as_deref());
    let level = match (plan.level, level) {
        (Level::Torture, Level::Torture) => " --level torture".to_owned(),
        (Level::Torture, _) => format!(" --level {}", Level::Standard),
        (Level::Quick, _) => String::new(),
        (level, _) => format!(" --level {level}"),
    };
    format!("{program} --seed {}{level} --exact '{}'", plan.seed, test.replace('\'', r"'\''"))
}

/// Returns Cargo's command for a test that Cargo has built and runs, or else the program itself.
fn program(executable: &Path, package: Option<&str>) -> String {
    let is_test = executable.parent().is_some_and(|folder| folder.ends_with("deps"));
    let name = executable.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    match (package, name.rsplit_once('-')) {
        (Some(package), Some((target, _))) if is_test => format!("cargo test -p {package} --test {target} --"),
        _ => executable.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_names_the_test_of_the_package() {
        let program = |path: &str, package| program(Path::new(path), package);
        let built = "target/debug/deps/my-conformance-0123456789abcdef";
        assert_eq!(program(built, Some("mine")), "cargo test -p mine --test my-conformance --");
        assert_eq!(program(built, None), built);
        assert_eq!(program("target/debug/my-program", Some("mine")), "target/debug/my-program");
    }

    #[test]
    fn a_level_is_named_where_it_matters() {
        let seed = "7".parse().unwrap();
        let command = |level, of_check| command("it's", of_check, Plan { level, seed, time: Duration::ZERO });
        let end = r"--exact 'it'\''s'";
        let seed = "--seed 0x0000000000000007";
        assert!(command(Level::Quick, Level::Smoke).ends_with(&format!("{seed} {end}")));
        assert!(command(Level::Standard, Level::Quick).ends_with(&format!("{seed} --level standard {end}")));
        assert!(command(Level::Torture, Level::Quick).ends_with(&format!("{seed} --level standard {end}")));
        assert!(command(Level::Smoke, Level::Smoke).ends_with(&format!("{seed} --level smoke {end}")));
        assert!(command(Level::Torture, Level::Torture).ends_with(&format!("{seed} --level torture {end}")));
    }
}
