//! Each fault, against a small server over real TCP.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::*;

const SOON: Duration = Duration::from_secs(10);
/// Long enough for anything that is not held.
const MOMENT: Duration = Duration::from_millis(150);

/// A server that echoes all bytes, and counts them.
struct Echo {
    address: SocketAddr,
    heard: Arc<AtomicUsize>,
}

impl Echo {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, heard) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let counter = Arc::clone(&heard);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let counter = Arc::clone(&counter);
                tokio::spawn(async move {
                    let mut buffer = [0; 1024];
                    while let Ok(read @ 1..) = client.read(&mut buffer).await {
                        counter.fetch_add(read, Ordering::SeqCst);
                        if client.write_all(&buffer[..read]).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { address, heard }
    }

    async fn heard(&self, bytes: usize) {
        let hears = async {
            while self.heard.load(Ordering::SeqCst) < bytes {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(SOON, hears).await.unwrap();
    }
}

async fn world() -> (Echo, FaultProxy) {
    let echo = Echo::start().await;
    let proxy = FaultProxy::start(echo.address).await.unwrap();
    (echo, proxy)
}

async fn connect(proxy: &FaultProxy) -> TcpStream {
    TcpStream::connect(proxy.address()).await.unwrap()
}

async fn ask(client: &mut TcpStream, question: &str) -> io::Result<String> {
    client.write_all(question.as_bytes()).await?;
    hear(client, question.len()).await
}

async fn hear(client: &mut TcpStream, bytes: usize) -> io::Result<String> {
    let mut answer = vec![0; bytes];
    timeout(SOON, client.read_exact(&mut answer)).await.expect("an answer or an end")?;
    Ok(String::from_utf8(answer).unwrap())
}

/// Whether nothing arrives for a while.
async fn is_silent(client: &mut TcpStream) -> bool {
    timeout(MOMENT, client.peek(&mut [0])).await.is_err()
}

async fn is_well(proxy: &FaultProxy) {
    assert_eq!(ask(&mut connect(proxy).await, "well?").await.unwrap(), "well?");
}

#[tokio::test]
async fn without_a_fault_everything_passes_and_is_counted() {
    let (echo, proxy) = world().await;
    let mut client = connect(&proxy).await;
    for question in ["one", "two", "three"] {
        assert_eq!(ask(&mut client, question).await.unwrap(), question);
    }
    assert_eq!((proxy.passed(), proxy.connections(), proxy.hits(), proxy.heal()), (22, 1, 0, 0));
    assert_eq!((proxy.target(), echo.heard.load(Ordering::SeqCst)), (echo.address, 11));
    // The other side sees the end of the stream, and what it still sends arrives.
    client.write_all(b"last").await.unwrap();
    client.shutdown().await.unwrap();
    let mut rest = String::new();
    timeout(SOON, client.read_to_string(&mut rest)).await.unwrap().unwrap();
    assert_eq!(rest, "last");
}

#[tokio::test]
async fn a_dropped_request_never_arrives() {
    let (echo, proxy) = world().await;
    proxy.strike(NetworkFault::drop_next(Way::ToServer, 2));
    for _ in 0..2 {
        let error = ask(&mut connect(&proxy).await, "lost").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }
    assert_eq!(echo.heard.load(Ordering::SeqCst), 0);
    is_well(&proxy).await;
    assert_eq!(proxy.heal(), 2);
}

#[tokio::test]
async fn a_dropped_reply_belongs_to_a_request_that_arrived() {
    let (echo, proxy) = world().await;
    let mut client = connect(&proxy).await;
    assert_eq!(ask(&mut client, "before").await.unwrap(), "before");
    proxy.strike(NetworkFault::drop_next(Way::ToClient, 1));
    assert_eq!(ask(&mut client, "lost").await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    echo.heard("beforelost".len()).await;
    assert_eq!(proxy.heal(), 1);
    is_well(&proxy).await;
}

#[tokio::test]
async fn only_what_contains_a_text_is_dropped() {
    let (echo, proxy) = world().await;
    let of = |way| NetworkFault::Drop { way, times: 5, containing: Some("write".into()) };
    for (way, heard) in [(Way::ToServer, 4), (Way::ToClient, 9)] {
        proxy.strike(of(way));
        let mut client = connect(&proxy).await;
        let before = echo.heard.load(Ordering::SeqCst);
        assert_eq!(ask(&mut client, "read").await.unwrap(), "read");
        assert_eq!(ask(&mut client, "write").await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        echo.heard(before + heard).await;
        assert_eq!(echo.heard.load(Ordering::SeqCst), before + heard, "{way:?}");
        assert_eq!(proxy.heal(), 1);
    }
}

#[tokio::test]
async fn a_delay_delays_one_direction_or_both() {
    let (_echo, proxy) = world().await;
    let mut client = connect(&proxy).await;
    for (way, times) in [(Way::ToServer, 1), (Way::ToClient, 1), (Way::Both, 2)] {
        proxy.strike(NetworkFault::Delay { way, by: MOMENT });
        let asked = Instant::now();
        assert_eq!(ask(&mut client, "slow").await.unwrap(), "slow");
        assert!(asked.elapsed() >= MOMENT * times, "{way:?}: {:?}", asked.elapsed());
        assert_eq!(proxy.heal(), u64::from(times), "{way:?}");
    }
}

#[tokio::test]
async fn what_is_split_arrives_whole() {
    let (_echo, proxy) = world().await;
    let mut client = connect(&proxy).await;
    let long: String = ('a'..='z').cycle().take(200).collect();
    for bytes in [0, 1, 7] {
        proxy.strike(NetworkFault::Split { bytes });
        client.write_all(long.as_bytes()).await.unwrap();
        // The first piece comes alone.
        let mut some = vec![0; 200];
        let read = timeout(SOON, client.read(&mut some)).await.unwrap().unwrap();
        assert!(read < 200, "{read} bytes came at once");
        let rest = hear(&mut client, 200 - read).await.unwrap();
        assert_eq!(String::from_utf8(some[..read].to_vec()).unwrap() + &rest, long);
        assert!(proxy.heal() > 0);
    }
}

#[tokio::test]
async fn a_reset_is_a_reset_for_old_and_new_connections() {
    let (_echo, proxy) = world().await;
    let mut old = connect(&proxy).await;
    assert_eq!(ask(&mut old, "before").await.unwrap(), "before");
    proxy.strike(NetworkFault::Reset);
    // A silent connection is reset, too.
    let error = hear(&mut old, 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let error = ask(&mut connect(&proxy).await, "new").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(proxy.heal(), 2);
    is_well(&proxy).await;
}

#[tokio::test]
async fn a_black_hole_holds_what_is_said_and_passes_it_on_in_the_end() {
    let (echo, proxy) = world().await;
    let mut client = connect(&proxy).await;
    assert_eq!(ask(&mut client, "before").await.unwrap(), "before");
    for (way, arrives) in [(Way::ToServer, 0), (Way::ToClient, 4), (Way::Both, 0)] {
        let before = echo.heard.load(Ordering::SeqCst);
        proxy.strike(NetworkFault::BlackHole { way });
        client.write_all(b"held").await.unwrap();
        assert!(is_silent(&mut client).await, "{way:?}");
        echo.heard(before + arrives).await;
        assert_eq!(echo.heard.load(Ordering::SeqCst), before + arrives, "{way:?}");
        // New connections succeed, and are silent as well.
        let mut new = connect(&proxy).await;
        new.write_all(b"new").await.unwrap();
        assert!(is_silent(&mut new).await, "{way:?}");
        assert_eq!(proxy.heal(), 2, "{way:?}");
        assert_eq!(hear(&mut client, 4).await.unwrap(), "held");
        assert_eq!(hear(&mut new, 3).await.unwrap(), "new");
    }
}

#[tokio::test]
async fn a_request_held_by_a_black_hole_outlives_its_client() {
    let (echo, proxy) = world().await;
    proxy.strike(NetworkFault::BlackHole { way: Way::ToServer });
    let mut client = connect(&proxy).await;
    client.write_all(b"late").await.unwrap();
    assert!(is_silent(&mut client).await);
    drop(client);
    assert_eq!(echo.heard.load(Ordering::SeqCst), 0);
    assert_eq!(proxy.heal(), 1);
    echo.heard(4).await;
}

#[tokio::test]
async fn a_half_open_connection_is_silent_for_ever_and_alone() {
    for (way, heard) in [(Way::ToServer, 0), (Way::ToClient, 5), (Way::Both, 0)] {
        let (echo, proxy) = world().await;
        let (mut meant, mut other) = (connect(&proxy).await, connect(&proxy).await);
        assert_eq!(ask(&mut meant, "before").await.unwrap(), "before");
        let before = echo.heard.load(Ordering::SeqCst);
        proxy.strike(NetworkFault::half_open(way, "write"));
        // Only the text is meant.
        assert_eq!(ask(&mut meant, "read").await.unwrap(), "read");
        assert!(timeout(MOMENT, proxy.until_hit(1)).await.is_err(), "{way:?}");
        meant.write_all(b"write").await.unwrap();
        timeout(SOON, proxy.until_hit(1)).await.unwrap();
        echo.heard(before + 4 + heard).await;
        // Other connections, old and new, do the same without harm.
        assert_eq!(ask(&mut other, "write").await.unwrap(), "write", "{way:?}");
        assert_eq!(ask(&mut connect(&proxy).await, "write").await.unwrap(), "write", "{way:?}");
        assert_eq!(echo.heard.load(Ordering::SeqCst), before + 4 + heard + 2 * 5, "{way:?}");
        assert_eq!(proxy.heal(), 1, "{way:?}");
        // Neither the end of the fault nor another fault revives it, and nothing arrives.
        let before = echo.heard.load(Ordering::SeqCst);
        meant.write_all(b"again").await.unwrap();
        proxy.strike(NetworkFault::Reset);
        assert!(is_silent(&mut meant).await, "{way:?}");
        let _ = proxy.heal();
        is_well(&proxy).await;
        assert_eq!(echo.heard.load(Ordering::SeqCst), before + 5, "{way:?}");
        // It ends with the proxy.
        drop(proxy);
        assert!(hear(&mut meant, 1).await.is_err(), "{way:?}");
    }
}

#[tokio::test]
async fn the_server_does_not_learn_that_the_client_of_a_half_open_connection_has_gone() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = FaultProxy::start(listener.local_addr().unwrap()).await.unwrap();
    let mut client = connect(&proxy).await;
    let (mut server, _) = listener.accept().await.unwrap();
    proxy.strike(NetworkFault::HalfOpen { way: Way::ToServer, times: 1, containing: None });
    client.write_all(b"lost").await.unwrap();
    timeout(SOON, proxy.until_hit(1)).await.unwrap();
    drop(client);
    assert!(is_silent(&mut server).await);
    // What the server sends is not refused, either.
    server.write_all(b"anybody?").await.unwrap();
    assert!(is_silent(&mut server).await);
    assert_eq!(proxy.heal(), 1);
}

#[tokio::test]
async fn a_half_open_fault_hits_as_many_marked_connections_as_it_is_told() {
    let (_echo, proxy) = world().await;
    let mut clients = Vec::new();
    for name in ["client-1", "client-1", "client-1", "client-2"] {
        let mut client = connect(&proxy).await;
        ask(&mut client, name).await.unwrap();
        clients.push(client);
    }
    proxy.strike_marked(NetworkFault::HalfOpen { way: Way::ToClient, times: 2, containing: None }, "client-1");
    assert_eq!(ask(&mut clients[3], "other").await.unwrap(), "other");
    for client in &mut clients[..2] {
        client.write_all(b"lost").await.unwrap();
        assert!(is_silent(client).await);
    }
    timeout(SOON, proxy.until_hit(2)).await.unwrap();
    assert_eq!(ask(&mut clients[2], "spared").await.unwrap(), "spared");
    assert_eq!((proxy.hits(), proxy.heal()), (2, 2));
}

#[tokio::test]
async fn only_marked_connections_are_hit() {
    let (_echo, proxy) = world().await;
    let (mut meant, mut other) = (connect(&proxy).await, connect(&proxy).await);
    ask(&mut meant, "I am client-1").await.unwrap();
    ask(&mut other, "I am client-2").await.unwrap();
    for fault in [NetworkFault::BlackHole { way: Way::Both }, NetworkFault::Reset] {
        proxy.strike_marked(fault, "client-1");
        assert_eq!(ask(&mut other, "still there").await.unwrap(), "still there");
    }
    assert_eq!(ask(&mut meant, "gone").await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(proxy.heal(), 1);
}

#[tokio::test]
async fn without_a_server_connections_are_reset_until_it_is_back() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = taken.local_addr().unwrap();
    drop(taken);
    let proxy = FaultProxy::start(target).await.unwrap();
    let error = ask(&mut connect(&proxy).await, "anybody?").await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error:?}");
}

#[tokio::test]
async fn a_dropped_proxy_ends_its_connections() {
    let (_echo, proxy) = world().await;
    let mut client = connect(&proxy).await;
    assert_eq!(ask(&mut client, "before").await.unwrap(), "before");
    drop(proxy);
    assert!(hear(&mut client, 1).await.is_err());
}

#[tokio::test]
async fn a_closed_proxy_has_ended_its_connections() {
    let (echo, proxy) = world().await;
    let mut client = connect(&proxy).await;
    assert_eq!(ask(&mut client, "before").await.unwrap(), "before");
    let (address, before) = (proxy.address(), echo.heard.load(Ordering::SeqCst));
    proxy.close().await;
    // Whether the client notices it while it writes or while it reads.
    assert!(ask(&mut client, "after").await.is_err());
    assert_eq!(echo.heard.load(Ordering::SeqCst), before);
    drop(TcpListener::bind(address).await.expect("the address is free"));
}
