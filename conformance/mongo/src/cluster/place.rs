//! Where a member runs: on loopback, or in its own network.
//!
//! As root on Linux each member has a network namespace with one interface, a virtual cable to this
//! machine. The test makes it, and the kernel removes it with the last process in it. No traffic is
//! routed further: members reach each other through proxies on this machine.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use distlock_conformance::{FixtureError, LocalServer};
use tokio::process::Command;
use tokio::time::sleep;

/// Inside a namespace every port is free.
const PORT: u16 = 27017;
const INSIDE: &str = "eth0";
const POLLS: u32 = 500;

/// A network between this machine and the members of a cluster: addresses `10.213.x.y`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Network {
    x: u8,
    name: u16,
}

impl Network {
    /// Finds an unused network, if this process may make networks.
    ///
    /// # Errors
    /// The reason why it may not.
    pub(super) async fn find() -> Result<Self, String> {
        run(Command::new("unshare").args(["--net", "--mount", "ip", "link"])).await?;
        for _ in 0..20 {
            let network = Self { x: fastrand::u8(..), name: fastrand::u16(..) };
            let range = format!("10.213.{}.0/24", network.x);
            let used = run(Command::new("ip").args(["-oneline", "address", "show", "to", &range])).await?;
            if used.trim().is_empty() {
                return Ok(network);
            }
        }
        Err("all networks 10.213.x.0/24 seem to be in use".to_owned())
    }

    /// Returns this machine's address in the network.
    pub(super) fn here(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 213, self.x, 1)
    }
}

/// Where one member runs.
#[derive(Debug)]
pub(super) struct Place {
    network: Option<(Network, u8)>,
    /// The size of a disk that is small enough to be filled.
    disk: Option<&'static str>,
    /// The first process in the namespace.
    script: std::sync::OnceLock<u32>,
}

impl Place {
    /// Makes the place of a member. A separate disk also needs a namespace.
    pub(super) fn new(network: Option<Network>, number: usize, disk: Option<&'static str>) -> Self {
        let number = u8::try_from(number).unwrap_or(u8::MAX);
        let disk = disk.filter(|_| network.is_some());
        Self { network: network.map(|network| (network, number)), disk, script: std::sync::OnceLock::new() }
    }

    pub(super) fn disk(&self) -> Option<&'static str> {
        self.disk
    }

    /// Returns the address on which the member must listen.
    pub(super) fn address(&self) -> std::io::Result<SocketAddr> {
        Ok(match self.network {
            Some((network, number)) => SocketAddr::new(inside(network, number).into(), PORT),
            None => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), LocalServer::free_port()?),
        })
    }

    /// Returns a command that runs its further arguments as a command in this place.
    pub(super) fn command(&self) -> Command {
        match self.network {
            Some(_) => {
                let mut command = Command::new("unshare");
                command.args(["--net", "--mount"]);
                command
            }
            None => Command::new("env"),
        }
    }

    /// Connects the namespace of the process that [`command`](Self::command) has started.
    pub(super) async fn connect(&self, script: u32) -> Result<(), FixtureError> {
        let _ = self.script.set(script);
        let Some((network, number)) = self.network else { return Ok(()) };
        let namespace = |pid: &str| std::fs::read_link(Path::new("/proc").join(pid).join("ns/net"));
        let (own, mut polls) = (namespace("self")?, 0);
        while namespace(&script.to_string())? == own {
            polls += 1;
            if polls > POLLS {
                return Err("the script of a member has no separate network".into());
            }
            sleep(Duration::from_millis(10)).await;
        }
        let (here, inside) = (format!("{}/32", network.here()), format!("{}/32", inside(network, number)));
        let cable = format!("dl{:02x}{:04x}m{number}", network.x, network.name);
        let script = script.to_string();
        ip(&["link", "add", &cable, "type", "veth", "peer", "name", INSIDE, "netns", &script]).await?;
        ip(&["address", "add", &here, "dev", &cable]).await?;
        ip(&["link", "set", &cable, "up"]).await?;
        ip(&["route", "add", &inside, "dev", &cable]).await?;
        self.ip_inside(&["address", "add", &inside, "dev", INSIDE]).await?;
        self.ip_inside(&["link", "set", "lo", "up"]).await?;
        self.plug().await
    }

    /// Takes the member's interface down, so that no traffic passes.
    pub(super) async fn unplug(&self) -> Result<(), FixtureError> {
        self.ip_inside(&["link", "set", INSIDE, "down"]).await
    }

    /// Takes the interface up again.
    pub(super) async fn plug(&self) -> Result<(), FixtureError> {
        let Some((network, _)) = self.network else { return Err(NO_NETWORK.into()) };
        self.ip_inside(&["link", "set", INSIDE, "up"]).await?;
        self.ip_inside(&["route", "replace", &format!("{}/32", network.here()), "dev", INSIDE]).await
    }

    async fn ip_inside(&self, arguments: &[&str]) -> Result<(), FixtureError> {
        let script = self.script.get().ok_or(NO_NETWORK)?.to_string();
        run(Command::new("nsenter").args(["--target", &script, "--net", "ip"]).args(arguments)).await?;
        Ok(())
    }
}

const NO_NETWORK: &str = "the member has no separate network";

fn inside(network: Network, number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 213, network.x, number.saturating_add(11))
}

async fn ip(arguments: &[&str]) -> Result<(), FixtureError> {
    run(Command::new("ip").args(arguments)).await?;
    Ok(())
}

/// Runs a command, and returns its output, or why it failed.
async fn run(command: &mut Command) -> Result<String, String> {
    let program = format!("{:?}", command.as_std());
    let output = command.output().await.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}
