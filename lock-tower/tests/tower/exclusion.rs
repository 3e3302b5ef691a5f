//! Over real TCP: which requests wait for which others, and in which order.

use axum::Router;
use axum::extract::Path;
use axum::routing::{get, post};
use distlock_memory::MemoryProvider;
use distlock_tower::key::{ParamKey, RouteKey};
use distlock_tower::{HeldLock, LockLayer, Monitor};
use hyper::Method;

use crate::common::{Answer, Events, Protocol, Server, Stage, request, until};

fn any_method() -> RouteKey {
    RouteKey::any_method().text("kind").text("id")
}

/// Every handler enters the stage with the name in its path, and waits there.
async fn orders(layer: LockLayer<RouteKey>) -> (Server, Monitor, Stage, Events) {
    let (stage, events) = Stage::new();
    let monitor = layer.monitor();
    let visit = {
        let stage = stage.clone();
        move |Path((kind, id)): Path<(String, String)>| async move {
            stage.visit(format!("{kind}{id}")).await;
            "done"
        }
    };
    let app = Router::new().route("/{kind}/{id}", post(visit.clone()).get(visit)).route_layer(layer);
    (Server::start(app).await, monitor, stage, events)
}

over_both!(
    requests_of_one_key_are_served_one_at_a_time_in_their_order,
    keys_are_independent,
    safe_methods_pass,
    other_methods_need_the_lock_if_configured,
    methods_of_one_resource_exclude_each_other_by_choice,
    routes_share_the_lock_of_a_resource,
    spellings_of_one_number_are_one_key,
    the_handler_sees_its_lock,
);

async fn requests_of_one_key_are_served_one_at_a_time_in_their_order(protocol: Protocol) {
    let (server, monitor, stage, mut events) = orders(LockLayer::new(MemoryProvider::new(), any_method())).await;
    // Each on a connection of its own: axum clones the services for each.
    let mut clients = Vec::new();
    let mut answers = Vec::new();
    for waiting in 0..5 {
        let client = server.client(protocol).await;
        answers.push(client.spawn_post("/order/4711"));
        clients.push(client);
        if waiting == 0 {
            events.entered("order4711").await;
        }
        until("it waits", || monitor.waiting() == waiting).await;
    }
    for answer in answers {
        assert_eq!((stage.inside(), monitor.held()), (1, 1));
        events.nothing();
        stage.let_go(1);
        let answer = Answer::read(answer.await.unwrap().unwrap()).await;
        assert_eq!(answer.text(), "done");
        events.finished("order4711").await;
        if monitor.granted() < 5 || monitor.held() > 0 {
            events.entered("order4711").await;
        }
    }
    monitor.idle().await;
    assert_eq!((monitor.granted(), monitor.held(), monitor.waiting()), (5, 0, 0));
}

async fn keys_are_independent(protocol: Protocol) {
    let (server, _, stage, mut events) = orders(LockLayer::new(MemoryProvider::new(), any_method())).await;
    let clients = [server.client(protocol).await, server.client(protocol).await, server.client(protocol).await];
    let _first = clients[0].spawn_post("/order/1");
    events.entered("order1").await;
    let _second = clients[1].spawn_post("/order/2");
    events.entered("order2").await;
    let _third = clients[2].spawn_post("/user/1");
    events.entered("user1").await;
    assert_eq!(stage.inside(), 3);
}

async fn safe_methods_pass(protocol: Protocol) {
    let (server, monitor, stage, mut events) = orders(LockLayer::new(MemoryProvider::new(), any_method())).await;
    let clients = [server.client(protocol).await, server.client(protocol).await];
    let _posting = clients[0].spawn_post("/order/1");
    events.entered("order1").await;
    let _getting = clients[1].spawn(request(Method::GET, "/order/1"));
    events.entered("order1").await;
    assert_eq!((stage.inside(), monitor.held()), (2, 1));
}

async fn other_methods_need_the_lock_if_configured(protocol: Protocol) {
    let layer = LockLayer::new(MemoryProvider::new(), any_method()).only_if(|parts| parts.method == "GET");
    let (server, monitor, stage, mut events) = orders(layer).await;
    let clients = [server.client(protocol).await, server.client(protocol).await, server.client(protocol).await];
    let _getting = clients[0].spawn(request(Method::GET, "/order/1"));
    events.entered("order1").await;
    let _waiting = clients[1].spawn(request(Method::GET, "/order/1"));
    until("it waits", || monitor.waiting() == 1).await;
    let _posting = clients[2].spawn_post("/order/1");
    events.entered("order1").await;
    assert_eq!(stage.inside(), 2);
}

async fn methods_of_one_resource_exclude_each_other_by_choice(protocol: Protocol) {
    for (key, excludes) in [(any_method(), true), (RouteKey::per_method().text("kind").text("id"), false)] {
        let layer = LockLayer::new(MemoryProvider::new(), key).only_if(|_| true);
        let (server, monitor, _, mut events) = orders(layer).await;
        let clients = [server.client(protocol).await, server.client(protocol).await];
        let _posting = clients[0].spawn_post("/order/1");
        events.entered("order1").await;
        let _getting = clients[1].spawn(request(Method::GET, "/order/1"));
        if excludes {
            until("it waits", || monitor.waiting() == 1).await;
        } else {
            events.entered("order1").await;
        }
    }
}

async fn routes_share_the_lock_of_a_resource(protocol: Protocol) {
    let (stage, mut events) = Stage::new();
    let layer = LockLayer::new(MemoryProvider::new(), ParamKey::text("order", "id").unwrap());
    let monitor = layer.monitor();
    let visit = |name: &'static str| {
        let stage = stage.clone();
        move || async move { stage.visit(name).await }
    };
    // One layer, added to each route separately.
    let app = Router::new()
        .route("/orders/{id}", post(visit("change")).layer(layer.clone()))
        .route("/orders/{id}/ship", post(visit("ship")).layer(layer));
    let server = Server::start(app).await;
    let clients = [server.client(protocol).await, server.client(protocol).await];
    let changing = clients[0].spawn_post("/orders/4711");
    events.entered("change").await;
    let shipping = clients[1].spawn_post("/orders/%34711/ship");
    until("it waits", || monitor.waiting() == 1).await;
    stage.let_go(2);
    changing.await.unwrap().unwrap();
    events.finished("change").await;
    events.entered("ship").await;
    shipping.await.unwrap().unwrap();
}

async fn spellings_of_one_number_are_one_key(protocol: Protocol) {
    let by_route = LockLayer::new(MemoryProvider::new(), RouteKey::any_method().typed::<u64>("id"));
    let by_param = LockLayer::new(MemoryProvider::new(), ParamKey::typed::<u64>("order", "id").unwrap());
    type Guard = Box<dyn Fn(Router) -> Router>;
    let guards: [(Monitor, Guard); 2] = [
        (by_route.monitor(), Box::new(move |app| app.route_layer(by_route.clone()))),
        (by_param.monitor(), Box::new(move |app| app.route_layer(by_param.clone()))),
    ];
    for (monitor, guarded) in guards {
        let (stage, mut events) = Stage::new();
        let visiting = stage.clone();
        let visit = move |Path(id): Path<u64>| async move { visiting.visit(format!("order{id}")).await };
        let app = guarded(Router::new().route("/num/{id}", post(visit)));
        let server = Server::start(app).await;
        let (mut clients, mut serving) = (Vec::new(), Vec::new());
        for (others, path) in ["/num/7", "/num/07", "/num/+7", "/num/007", "/num/%37"].into_iter().enumerate() {
            let client = server.client(protocol).await;
            serving.push(client.spawn_post(path));
            clients.push(client);
            if others == 0 {
                events.entered("order7").await;
            }
            until("it waits", || monitor.waiting() == others).await;
        }
        assert_eq!(stage.inside(), 1);
        server.client(protocol).await.post("/num/seven").await.assert_problem(400, "bad-key", false);
        stage.let_go(5);
        for answer in serving {
            answer.await.unwrap().unwrap();
        }
    }
}

async fn the_handler_sees_its_lock(protocol: Protocol) {
    let describe = |held: Option<HeldLock>| async move {
        held.map_or("no lock".to_owned(), |held| {
            assert!(!held.is_lost());
            assert_eq!(held.token_of(held.key()), Some(held.fencing_token()));
            format!("{} {}", held.key(), held.grants().len())
        })
    };
    let app = Router::new()
        .route("/orders/{id}", post(describe).get(describe))
        .route_layer(LockLayer::new(MemoryProvider::new(), ParamKey::text("order", "id").unwrap()))
        .route("/unlocked", get(|held: HeldLock| async move { held.key().to_string() }));
    let client = Server::start(app).await;
    let client = client.client(protocol).await;
    assert_eq!(client.post("/orders/a%2Fb").await.text(), "order/a%2Fb 1");
    let passed = Answer::read(client.send(request(Method::GET, "/orders/7")).await.unwrap()).await;
    assert_eq!(passed.text(), "no lock");
    // A handler that must have a lock does not run without.
    let unlocked = client.send(request(Method::GET, "/unlocked")).await.unwrap();
    Answer::read(unlocked).await.assert_problem(500, "misconfigured", false);
}
