//! Where the server's programs come from, and as which user they run.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Result;

const FETCH: &str = include_str!("fetch.sh");

type Find = fn() -> Result<Programs>;
pub(super) const SOURCES: [(&str, Find); 3] = [("docker", docker), ("installed", installed), ("fetched", fetched)];

/// The programs that start a server.
pub(super) struct Programs {
    pub(super) description: String,
    kind: Kind,
}

enum Kind {
    /// The folder of `postgres` and `initdb`.
    Local(PathBuf),
    /// The name of the image.
    Image(String),
}

/// The output of a program that succeeds.
fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{name}: {error}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{name} failed: {}", errors.trim().replace('\n', " / ")).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn docker() -> Result<Programs> {
    let images = ["image", "ls", "--filter", "reference=postgres", "--format", "{{.Repository}}:{{.Tag}}"];
    let images = output(Command::new("docker").args(images))?;
    let image = images.lines().next().ok_or("there is no image `postgres`, and none is pulled")?;
    Ok(Programs { description: format!("a container of {image}"), kind: Kind::Image(image.to_owned()) })
}

fn installed() -> Result<Programs> {
    let on_path = std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let mut versions: Vec<PathBuf> = match std::fs::read_dir("/usr/lib/postgresql") {
        Ok(entries) => entries.filter_map(|entry| Some(entry.ok()?.path().join("bin"))).collect(),
        Err(_) => Vec::new(),
    };
    // The newest first.
    versions.sort_by_key(|bin| std::cmp::Reverse(version_in(bin)));
    let places = on_path.into_iter().flatten().chain(versions);
    let has_both = |bin: &PathBuf| bin.join("postgres").is_file() && bin.join("initdb").is_file();
    local(places.into_iter().find(has_both).ok_or("neither on PATH nor in /usr/lib/postgresql")?)
}

fn version_in(bin: &Path) -> Option<u32> {
    bin.parent()?.file_name()?.to_str()?.parse().ok()
}

fn fetched() -> Result<Programs> {
    let tools = target_dir()?.join("distlock-tools");
    local(PathBuf::from(output(Command::new("sh").args(["-c", FETCH, "fetch"]).arg(tools))?))
}

/// Cargo marks the `target` folder with a `CACHEDIR.TAG`.
fn target_dir() -> Result<PathBuf> {
    let executable = std::env::current_exe()?;
    let tagged = executable.ancestors().skip(1).find(|dir| dir.join("CACHEDIR.TAG").is_file());
    Ok(tagged.ok_or("the test is in no target folder")?.to_path_buf())
}

fn local(bin: PathBuf) -> Result<Programs> {
    let version = output(Command::new(bin.join("postgres")).arg("--version"))?;
    Ok(Programs { description: format!("a local process of {} ({version})", bin.display()), kind: Kind::Local(bin) })
}

impl Programs {
    pub(super) fn is_container(&self) -> bool {
        matches!(self.kind, Kind::Image(_))
    }

    /// The signal that ends the server at once and cleanly, with its children and its shared
    /// memory.
    pub(super) fn signal(&self) -> &'static str {
        if self.is_container() { "TERM" } else { "QUIT" }
    }

    /// Creates the data, and returns the command that runs the server.
    pub(super) fn prepare(&self, dir: &Path, user: User, port: u16, settings: &[&str]) -> Result<Vec<String>> {
        let options = |command: Vec<String>| -> Vec<String> {
            let settings = settings.iter().flat_map(|setting| ["-c".to_owned(), (*setting).to_owned()]);
            command.into_iter().chain(settings).collect()
        };
        let bin = match &self.kind {
            Kind::Local(bin) => bin,
            Kind::Image(image) => {
                let run = format!(
                    "docker run --rm --publish 127.0.0.1:{port}:5432 --env POSTGRES_HOST_AUTH_METHOD=trust {image}"
                );
                let mut command = options(run.split(' ').map(str::to_owned).collect());
                // The last setting of a name counts. In the container all addresses are its own.
                command.extend(["-c".to_owned(), "listen_addresses=*".to_owned()]);
                return Ok(command);
            }
        };
        let data = dir.join("data");
        let mut initdb = Command::new(bin.join("initdb"));
        initdb.args(["--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale", "--no-sync", "--pgdata"]);
        user.become_in(initdb.arg(&data).current_dir(dir));
        output(&mut initdb)?;
        let word = |path: &Path| path.to_string_lossy().into_owned();
        let (program, data, port) = (word(&bin.join("postgres")), word(&data), port.to_string());
        let flags = ["-D".to_owned(), data, "-p".to_owned(), port, "-k".to_owned(), word(dir)];
        Ok(options([program].into_iter().chain(flags).collect()))
    }
}

/// The user of a server process.
#[derive(Clone, Copy)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
    is_other: bool,
}

impl User {
    /// The user of this process. PostgreSQL refuses root; it is replaced by `postgres` or `nobody`.
    pub(super) fn of_server() -> Result<Self> {
        let own = |option| -> Result<u32> { Ok(output(Command::new("id").arg(option))?.parse()?) };
        let (uid, gid) = (own("-u")?, own("-g")?);
        if uid != 0 {
            return Ok(Self { uid, gid, is_other: false });
        }
        let users = std::fs::read_to_string("/etc/passwd")?;
        let entry = |name: &str| {
            let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
            let mut numbers = line.split(':').skip(2).map(str::parse);
            Some(Self { uid: numbers.next()?.ok()?, gid: numbers.next()?.ok()?, is_other: true })
        };
        let user = entry("postgres").or_else(|| entry("nobody"));
        user.ok_or_else(|| "root may not run PostgreSQL, and there is no user `postgres` or `nobody`".into())
    }

    pub(super) fn become_in(self, command: &mut Command) {
        if self.is_other {
            command.uid(self.uid).gid(self.gid);
        }
    }
}
