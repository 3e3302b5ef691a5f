//! Faults between clients and servers, made by proxies in front of all servers of an arena.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::Fault;
use crate::failure::FixtureError;
use crate::proxy::{FaultProxy, NetworkFault, Way};

/// The delay of [`Hook::Delay`](super::Hook::Delay).
pub(crate) const LATE: Duration = Duration::from_secs(2);
/// The delay of [`Hook::Lag`](super::Hook::Lag).
pub(crate) const LAG: Duration = Duration::from_millis(100);

/// The faults of [proxies](FaultProxy) in front of all servers of an [`Arena`](crate::Arena). For a
/// single server, [`TcpArena`](crate::TcpArena) has them.
#[derive(Clone, Debug)]
pub struct ProxyFaults {
    proxies: Arc<[FaultProxy]>,
    mark: Option<&'static str>,
    request: Option<&'static str>,
}

impl ProxyFaults {
    /// Makes faults that affect all connections, and may lose any request.
    #[must_use]
    pub fn new(proxies: impl Into<Arc<[FaultProxy]>>) -> Self {
        Self { proxies: proxies.into(), mark: None, request: None }
    }

    /// Limits the faults to connections whose first bytes contain `mark`. Use this for the
    /// connections of clients if the servers reach each other through the same proxies. See
    /// [`FaultProxy::strike_marked`].
    #[must_use]
    pub fn of_marked(mut self, mark: &'static str) -> Self {
        self.mark = Some(mark);
        self
    }

    /// Limits losses to requests that contain this text, and the replies to them.
    #[must_use]
    pub fn of_requests(mut self, text: &'static str) -> Self {
        self.request = Some(text);
        self
    }

    /// Returns all faults that proxies can make of any traffic.
    #[must_use]
    pub fn faults(&self) -> Vec<Arc<dyn Fault>> {
        let dropped = |way| NetworkFault::Drop { way, times: 10, containing: self.request.map(str::to_owned) };
        let hole = |way| NetworkFault::BlackHole { way };
        let faults = [
            ("drop-request", 3, dropped(Way::ToServer)),
            ("drop-reply", 3, dropped(Way::ToClient)),
            ("delay", 4, NetworkFault::Delay { way: Way::Both, by: Duration::from_millis(250) }),
            ("split", 3, NetworkFault::Split { bytes: 32 }),
            ("one-way-to-server", 5, hole(Way::ToClient)),
            ("one-way-to-client", 5, hole(Way::ToServer)),
        ];
        let mut faults: Vec<_> =
            faults.into_iter().map(|(kind, seconds, fault)| self.fault(kind, seconds, fault)).collect();
        faults.extend([self.reset(), self.black_hole()]);
        faults
    }

    /// Returns faults that swallow two requests, or the replies to two, and leave the connections
    /// open and silent.
    #[must_use]
    pub fn half_open(&self) -> [Arc<dyn Fault>; 2] {
        [("half-open-request", Way::ToServer), ("half-open-reply", Way::ToClient)].map(|(kind, way)| {
            let containing = self.request.map(str::to_owned);
            // Longer than a few request timeouts of the clients that wait for an answer.
            self.fault(kind, 8, NetworkFault::HalfOpen { way, times: 2, containing })
        })
    }

    /// Returns the fault that ends connections and refuses new ones:
    /// [`Hook::Cut`](crate::Hook::Cut).
    #[must_use]
    pub fn reset(&self) -> Arc<dyn Fault> {
        self.fault("reset", 3, NetworkFault::Reset)
    }

    /// Returns the fault that delays requests by two seconds, even beyond its end:
    /// [`Hook::Delay`](crate::Hook::Delay).
    #[must_use]
    pub fn late_requests(&self) -> Arc<dyn Fault> {
        self.fault("late-requests", 3, NetworkFault::Delay { way: Way::ToServer, by: LATE })
    }

    /// Returns the fault that delays each request by a tenth of a second:
    /// [`Hook::Lag`](crate::Hook::Lag).
    #[must_use]
    pub fn lag(&self) -> Arc<dyn Fault> {
        self.fault("lag", 3, NetworkFault::Delay { way: Way::ToServer, by: LAG })
    }

    /// Returns the fault that loses each reply and closes its connection:
    /// [`Hook::LoseReplies`](crate::Hook::LoseReplies).
    #[must_use]
    pub fn lost_replies(&self) -> Arc<dyn Fault> {
        let containing = self.request.map(str::to_owned);
        self.fault("lost-replies", 3, NetworkFault::Drop { way: Way::ToClient, times: u32::MAX, containing })
    }

    /// Returns the fault that keeps connections open and passes nothing:
    /// [`Hook::Stall`](crate::Hook::Stall).
    #[must_use]
    pub fn black_hole(&self) -> Arc<dyn Fault> {
        self.fault("black-hole", 5, NetworkFault::BlackHole { way: Way::Both })
    }

    fn fault(&self, kind: &'static str, seconds: u64, fault: NetworkFault) -> Arc<dyn Fault> {
        Arc::new(OfProxies { kind, lasts: Duration::from_secs(seconds), fault, of: self.clone() })
    }
}

/// The same fault in front of all servers.
struct OfProxies {
    kind: &'static str,
    lasts: Duration,
    fault: NetworkFault,
    of: ProxyFaults,
}

#[async_trait]
impl Fault for OfProxies {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn duration(&self) -> Duration {
        self.lasts
    }

    async fn begin(&self) -> Result<(), FixtureError> {
        for proxy in &*self.of.proxies {
            match self.of.mark {
                Some(mark) => proxy.strike_marked(self.fault.clone(), mark),
                None => proxy.strike(self.fault.clone()),
            }
        }
        Ok(())
    }

    async fn end(&self) -> Result<String, FixtureError> {
        match self.of.proxies.iter().map(FaultProxy::heal).sum::<u64>() {
            0 => Err("it affected no client".into()),
            hits => Ok(format!("it struck {hits} times")),
        }
    }
}
