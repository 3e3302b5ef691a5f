//! A connection to a server that can be cut.

use std::net::SocketAddr;

use distlock::mongodb::mongodb::bson::doc;
use distlock::mongodb::mongodb::options::ClientOptions;
use distlock_conformance::proxy::FaultProxy;
use tokio::net::lookup_host;

use crate::kit::World;

/// Starts a proxy before the primary of the set. Its drop cuts all connections, and refuses new
/// ones.
pub(crate) async fn start(world: &World) -> FaultProxy {
    FaultProxy::start(primary(world).await).await.expect("a proxy")
}

/// Returns the connection string of the primary through the proxy.
pub(crate) fn uri(proxy: &FaultProxy) -> String {
    format!("mongodb://{}/?directConnection=true", proxy.address())
}

/// Returns the address of the primary. The name that a server in a container has for itself does
/// not lead to it from here.
pub(crate) async fn primary(world: &World) -> SocketAddr {
    let options = ClientOptions::parse(&world.uri).await.expect("a connection string");
    let host = if options.direct_connection == Some(true) {
        options.hosts[0].to_string()
    } else {
        let hello = world.client.database("admin").run_command(doc! { "hello": 1 }).await.expect("an answer");
        hello.get_str("primary").expect("a primary").to_owned()
    };
    lookup_host(host).await.expect("an address").find(SocketAddr::is_ipv4).expect("an IPv4 address")
}
