//! The faults of a cluster.

mod commands;
mod disk;
mod election;
mod majority;
mod network;
mod process;
mod sweep;

use std::sync::Arc;

use distlock_conformance::Fault;

use super::set::Cluster;
pub(super) use sweep::sweep;

/// The faults that need namespaces.
pub(super) const OF_NAMESPACES: [&str; 2] = [network::CUT, disk::FULL];

/// The primary is killed, and another member takes over.
pub(super) fn crash(cluster: &Arc<Cluster>) -> Arc<dyn Fault> {
    process::without_primary(cluster, process::Mode::Kill)
}

/// Returns all faults that are possible here.
pub(super) fn all(cluster: &Arc<Cluster>) -> Vec<Arc<dyn Fault>> {
    let mut all = Vec::new();
    all.extend(commands::all(cluster));
    all.extend(election::all(cluster));
    all.extend(process::all(cluster));
    all.extend(majority::all(cluster));
    all.extend(cluster.proxy_faults().faults());
    all.extend(network::half_open(cluster));
    all.push(network::inbound_cut(cluster));
    if cluster.no_network.is_none() {
        all.push(network::cut(cluster));
        all.push(disk::full(cluster));
    }
    all
}
