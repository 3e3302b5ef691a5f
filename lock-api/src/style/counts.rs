//! Counts requests by what they have in common, so that a layer can bound the share of each.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The sender of a request, in whose share the request counts. For [`Counts`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client(Kind);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Named(String),
    Peer(IpAddr),
}

impl Client {
    /// Returns the client with this name, such as the id of a user. It differs from all peers.
    #[must_use]
    pub fn named(name: String) -> Self {
        Self(Kind::Named(name))
    }

    /// Returns the client at this address of a connection's peer. All addresses of an IPv6 network
    /// of 64 bits are one client, because one client usually has all of them.
    #[must_use]
    pub fn peer(address: IpAddr) -> Self {
        Self(Kind::Peer(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
            address => address,
        }))
    }
}

/// The number of requests of each client, or of any other value. Values without a request take no
/// memory.
///
/// ```
/// use std::sync::Arc;
///
/// use distlock_api::style::{Client, Counts};
///
/// let clients = Arc::new(Counts::default());
/// let ann = Client::named("ann".to_owned());
/// let request = clients.enter(ann.clone(), 1);
/// assert!(request.is_some() && clients.is_full(&ann, 1));
/// assert!(clients.enter(ann.clone(), 1).is_none());
/// drop(request);
/// assert_eq!(clients.total(), 0);
/// ```
pub struct Counts<K> {
    counts: Mutex<HashMap<K, usize>>,
}

impl<K: Clone + Eq + Hash> Counts<K> {
    /// Counts one more request of `value`, until the returned value is dropped. Returns `None` if
    /// there are already `limit` of them.
    pub fn enter(self: &Arc<Self>, value: K, limit: usize) -> Option<Counted<K>> {
        let mut counts = self.lock();
        match counts.get_mut(&value) {
            Some(count) if *count >= limit => return None,
            Some(count) => *count += 1,
            None if limit == 0 => return None,
            None => {
                counts.insert(value.clone(), 1);
            }
        }
        drop(counts);
        Some(Counted { counts: self.clone(), value })
    }

    /// Returns whether there are already `limit` requests of `value`.
    #[must_use]
    pub fn is_full(&self, value: &K, limit: usize) -> bool {
        self.lock().get(value).copied().unwrap_or(0) >= limit
    }

    /// Returns the number of all requests. It adds up the counts of all values.
    #[must_use]
    pub fn total(&self) -> usize {
        self.lock().values().sum()
    }
}

impl<K> Counts<K> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K> Default for Counts<K> {
    fn default() -> Self {
        Self { counts: Mutex::default() }
    }
}

impl<K> fmt::Debug for Counts<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counts").field("values", &self.lock().len()).finish_non_exhaustive()
    }
}

/// A request that counts until this is dropped. Made by [`Counts::enter`].
#[derive(Debug)]
#[must_use = "the request counts until this is dropped"]
pub struct Counted<K: Eq + Hash> {
    counts: Arc<Counts<K>>,
    value: K,
}

impl<K: Eq + Hash> Drop for Counted<K> {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&self.value) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_has_a_limit_and_nothing_is_left_behind() {
        let counts = Arc::new(Counts::default());
        let first = counts.enter("a", 2).unwrap();
        assert!(!counts.is_full(&"a", 2));
        let second = counts.enter("a", 2).unwrap();
        assert!(counts.enter("a", 2).is_none() && counts.is_full(&"a", 2) && !counts.is_full(&"a", 3));
        let other = counts.enter("b", 2).unwrap();
        assert_eq!(counts.total(), 3);
        drop(first);
        let third = counts.enter("a", 2).unwrap();
        drop((second, third, other));
        assert!(counts.total() == 0 && counts.lock().is_empty());
    }

    /// A remote caller chooses the values, and could fill the memory with refused ones.
    #[test]
    fn a_refused_request_leaves_nothing_behind() {
        let counts = Arc::new(Counts::default());
        assert!(counts.enter("a", 0).is_none() && counts.is_full(&"a", 0));
        assert!(counts.lock().is_empty());
    }

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let peer = |address: &str| Client::peer(address.parse().unwrap());
        assert_eq!(peer("2001:db8:0:1::7"), peer("2001:db8:0:1:ffff::8"));
        assert_ne!(peer("2001:db8:0:1::7"), peer("2001:db8:0:2::7"));
        assert_eq!(peer("::ffff:192.0.2.1"), peer("192.0.2.1"));
        assert_ne!(peer("192.0.2.1"), peer("192.0.2.2"));
        assert_ne!(peer("192.0.2.1"), Client::named("192.0.2.1".to_owned()));
    }
}
