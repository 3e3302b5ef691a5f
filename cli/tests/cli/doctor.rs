//! `doctor`, on a deployment that is well and on others.

use std::collections::BTreeMap;

use distlock::mongodb::mongodb::Client;
use distlock::mongodb::mongodb::bson::{DateTime, Document, doc};
use distlock_conformance_mongo::{Imitation, MongoServer, Shape, Topology};
use serde_json::Value;

use crate::Tests;
use crate::kit::{World, finish, random_name};
use crate::proxy::primary;

pub(crate) fn add(tests: &mut Tests) {
    tests.add("doctor::a_deployment_that_is_well", well);
    tests.add("doctor::a_server_that_cannot_be_reached", away);
    tests.add("doctor::a_ttl_that_is_too_short", short_ttl);
    tests.add("doctor::an_index_that_removes_records", foreign_index);
    tests.add("doctor::a_collection_that_removes_records", capped);
    tests.add("doctor::a_server_that_is_not_mongodb", not_mongodb);
    tests.add("doctor::a_server_without_change_streams", without_streams);
    tests.add("doctor::records_that_cannot_be_read", unreadable_records);
    tests.add("doctor::records_far_ahead", records_far_ahead);
    tests.add("doctor::a_member_that_is_down", member_down);
    tests.add_controlled("doctor::a_privilege_that_is_missing", privileges);
}

fn by_check(findings: &[Value]) -> BTreeMap<&str, &Value> {
    findings.iter().map(|finding| (finding["check"].as_str().expect("a check"), finding)).collect()
}

async fn well(world: World) {
    let findings = world.output(&["doctor"]).await.expect(0).objects();
    let by_check = by_check(&findings);
    let checks = [
        "connection",
        "deployment",
        "version",
        "privileges",
        "collection",
        "indexes",
        "changeStream",
        "ping",
        "majority",
        "clocks",
    ];
    for check in checks {
        let finding = by_check.get(check).unwrap_or_else(|| panic!("{check} is missing: {findings:?}"));
        assert_ne!(finding["verdict"], "wrong", "{finding}");
        assert_eq!(finding["verdict"] == "ok", finding["advice"].is_null(), "{finding}");
    }
    for check in ["connection", "collection", "indexes", "changeStream"] {
        assert_eq!(by_check[check]["verdict"], "ok", "{}", by_check[check]);
    }
    let records = world.client.database(&world.database).collection::<Document>("locks");
    assert_eq!(records.count_documents(doc! {}).await.expect("a number"), 0, "its own record is removed");
    let lines = world.output(&["doctor", "--human"]).await.expect(0).out;
    assert!(lines.lines().any(|line| line.starts_with("ok       changeStream")), "{lines}");
    assert!(lines.lines().last().is_some_and(|line| line.ends_with("0 wrong")), "{lines}");
}

async fn away(world: World) {
    let uri = "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=300";
    let findings = finish(world.command_on(uri, &["doctor"])).await.expect(1).objects();
    assert_eq!((&findings[0]["check"], &findings[0]["verdict"]), (&"connection".into(), &"wrong".into()));
    assert!(findings[0]["advice"].is_string() && findings.len() == 2, "{findings:?}");
    assert_eq!((&findings[1]["check"], &findings[1]["wrong"]), (&"sum".into(), &1.into()));
    let findings = finish(world.command_on("mongodb://host:port", &["doctor"])).await.expect(1).objects();
    assert_eq!(findings[0]["verdict"], "wrong", "{findings:?}");
    // The other commands have the exit codes of these errors.
    finish(world.command_on(uri, &["ls"])).await.expect(69);
    finish(world.command_on(uri, &["run", "k", "--", "true"])).await.expect(69);
    finish(world.command_on("mongodb://host:port", &["ls"])).await.expect(78);
}

fn text<'a>(finding: &'a Value, field: &str) -> &'a str {
    finding[field].as_str().unwrap_or_else(|| panic!("no {field}: {finding}"))
}

async fn capped(world: World) {
    let create = doc! { "create": "locks", "capped": true, "size": 100_000, "max": 8 };
    world.client.database(&world.database).run_command(create).await.expect("a collection");
    let findings = world.output(&["doctor"]).await.expect(1).objects();
    let finding = by_check(&findings)["collection"];
    assert!(text(finding, "found").contains("is capped"), "{finding}");
    assert!(!text(finding, "advice").contains("primary"), "{finding}");
    let refused = world.output(&["run", "job", "--", "true"]).await.expect(78);
    assert!(refused.err.contains("is capped"), "{refused:?}");
}

async fn not_mongodb(world: World) {
    for (shape, lacking) in
        [(Shape::AmazonDocumentDb, "pipeline updates"), (Shape::EarlyDocumentDbOnPostgres, "the variable $$NOW")]
    {
        let imitation = Imitation::of(shape, primary(&world).await).await.expect("a proxy");
        let uri = format!("mongodb://{}/?directConnection=true", imitation.address());
        let findings = finish(world.command_on(&uri, &["doctor"])).await.expect(1).objects();
        let finding = by_check(&findings)["collection"];
        let said = format!("this server is not MongoDB: it lacks {lacking}");
        assert!(text(finding, "found").contains(&said), "{finding}");
        assert!(!text(finding, "advice").contains("primary"), "{finding}");
        let refused = finish(world.command_on(&uri, &["run", "job", "--", "true"])).await.expect(78);
        assert!(refused.err.contains(&said), "{refused:?}");
    }
}

async fn without_streams(world: World) {
    for shape in [Shape::AtlasFlex, Shape::DocumentDbOnPostgres] {
        let imitation = Imitation::of(shape, primary(&world).await).await.expect("a proxy");
        let uri = format!("mongodb://{}/?directConnection=true", imitation.address());
        let findings = finish(world.command_on(&uri, &["doctor"])).await.expect(0).objects();
        let finding = by_check(&findings)["changeStream"];
        assert_eq!(finding["verdict"], "warning", "{finding}");
        assert!(text(finding, "found").contains("no change streams"), "{finding}");
        assert!(text(finding, "advice").contains("Atlas Flex"), "{finding}");
        finish(world.command_on(&uri, &["run", "job", "--", "true"])).await.expect(0);
    }
}

async fn unreadable_records(world: World) {
    world.output(&["run", "good", "--", "true"]).await.expect(0);
    let records = world.client.database(&world.database).collection::<Document>("locks");
    let findings = world.output(&["doctor", "--records"]).await.expect(0).objects();
    assert_eq!(by_check(&findings)["records"]["verdict"], "ok", "{findings:?}");
    let soon = DateTime::from_millis(DateTime::now().timestamp_millis() + 60_000);
    let ticket = doc! { "id": "x", "seen": DateTime::now(), "ttl": f64::NAN };
    let held = |id: &str| doc! { "_id": id, "lockId": "x", "fencingToken": 7_i64, "expiresAt": soon };
    let mut with_ticket = held("ticket");
    with_ticket.insert("queue", vec![ticket]);
    let mut of_doubles = held("doubles");
    of_doubles.insert("fencingToken", 7.0);
    records.insert_many([with_ticket, of_doubles]).await.expect("records");
    let findings = world.output(&["doctor", "--records"]).await.expect(1).objects();
    let finding = by_check(&findings)["records"];
    let found = text(finding, "found");
    for part in ["2 of 3 records", "\"ticket\" (`queue.0.ttl` is NaN ms)", "\"doubles\" (`fencingToken` is of type"] {
        assert!(found.contains(part), "{part}: {finding}");
    }
    assert!(!found.contains("good"), "{finding}");
    let findings = world.output(&["doctor"]).await.expect(0).objects();
    assert!(!by_check(&findings).contains_key("records"), "{findings:?}");
}

async fn records_far_ahead(world: World) {
    let records = world.client.database(&world.database).collection::<Document>("locks");
    let far = doc! { "_id": "far", "fencingToken": 7_i64, "expiresAt": DateTime::from_millis(921_281_299_200_000) };
    let scale = doc! { "_id": "scale", "fencingToken": 1_i64 << 60, "expiresAt": DateTime::now() };
    records.insert_many([far, scale]).await.expect("records");
    let findings = world.output(&["doctor", "--records"]).await.expect(1).objects();
    let finding = by_check(&findings)["records"];
    let found = text(finding, "found");
    assert!(found.contains("2 of 2 records"), "{finding}");
    assert!(found.contains("\"far\" (`expiresAt` is in the year 31164)"), "{finding}");
    assert!(found.contains("\"scale\" (the token 1152921504606846976 stands for the year"), "{finding}");
}

/// The set has a member that never comes, and has no vote.
async fn member_down(world: World) {
    let server = MongoServer::start_local(Topology::ReplicaSet, 1).await.expect("a server");
    let client = Client::with_uri_str(server.uri()).await.expect("a client");
    let admin = client.database("admin");
    let config = admin.run_command(doc! { "replSetGetConfig": 1 }).await.expect("a configuration");
    let mut config = config.get_document("config").expect("a configuration").clone();
    let version = config.get_i32("version").expect("a version");
    config.insert("version", version + 1);
    let members = config.get_array_mut("members").expect("members");
    members.push(doc! { "_id": 1, "host": "127.0.0.1:1", "votes": 0, "priority": 0 }.into());
    admin.run_command(doc! { "replSetReconfig": config }).await.expect("a configuration");
    let findings = finish(world.command_on(server.uri(), &["doctor"])).await.expect(0).objects();
    let finding = by_check(&findings)["deployment"];
    let found = text(finding, "found");
    assert_eq!(finding["verdict"], "warning", "{finding}");
    assert!(found.starts_with("a replica set of 2 members; reached from here: 127.0.0.1:"), "{finding}");
    assert!(found.ends_with("; not reached: 127.0.0.1:1"), "{finding}");
    client.shutdown().immediate(true).await;
    server.stop().await;
}

async fn short_ttl(world: World) {
    let findings = world.output(&["doctor", "--ttl", "1ms"]).await.expect(1).objects();
    assert_eq!(by_check(&findings)["majority"]["verdict"], "wrong", "{findings:?}");
}

async fn foreign_index(world: World) {
    world.output(&["run", "k", "--", "true"]).await.expect(0);
    let index = doc! { "key": { "other": 1 }, "name": "mine", "expireAfterSeconds": 60 };
    let create = doc! { "createIndexes": "locks", "indexes": [index] };
    world.client.database(&world.database).run_command(create).await.expect("an index");
    let findings = world.output(&["doctor"]).await.expect(1).objects();
    let finding = by_check(&findings)["indexes"].clone();
    assert!(finding["verdict"] == "wrong" && finding["found"].as_str().expect("text").contains("mine"), "{finding}");
}

/// Returns the connection string of a new user with these privileges on the lock collection.
pub(crate) async fn user(world: &World, actions: &[&str], password: &str) -> String {
    let name = random_name("user");
    let resource = doc! { "db": &world.database, "collection": "locks" };
    let privileges = vec![doc! { "resource": resource, "actions": actions.to_vec() }];
    let none: Vec<Document> = Vec::new();
    let admin = world.client.database("admin");
    admin.run_command(doc! { "createRole": &name, "privileges": privileges, "roles": none }).await.expect("a role");
    admin.run_command(doc! { "createUser": &name, "pwd": password, "roles": [&name] }).await.expect("a user");
    let (_, rest) = world.uri.split_once("://").expect("a connection string");
    let hosts = rest.rsplit_once('@').map_or(rest, |(_, hosts)| hosts);
    format!("mongodb://{name}:{password}@{hosts}")
}

async fn privileges(world: World) {
    let all = ["find", "insert", "update", "createIndex", "changeStream", "listIndexes"];
    let uri = user(&world, &all, "secret-of-doctor").await;
    let findings = finish(world.command_on(&uri, &["doctor"])).await.expect(0).objects();
    assert_eq!(by_check(&findings)["privileges"]["verdict"], "ok", "{findings:?}");
    assert_eq!(by_check(&findings)["changeStream"]["verdict"], "ok", "{findings:?}");
    let uri = user(&world, &["find", "update", "createIndex", "listIndexes"], "secret-of-doctor").await;
    let findings = finish(world.command_on(&uri, &["doctor"])).await.expect(1).objects();
    let finding = by_check(&findings)["privileges"].clone();
    let found = finding["found"].as_str().expect("text");
    assert!(finding["verdict"] == "wrong" && found.contains("insert") && found.contains("changeStream"), "{finding}");
    assert!(!found.contains("find"), "{finding}");
}
