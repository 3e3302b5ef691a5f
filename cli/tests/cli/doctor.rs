//! `doctor`, on a deployment that is well and on others.

use std::collections::BTreeMap;

use distlock::mongodb::mongodb::bson::{Document, doc};
use serde_json::Value;

use crate::Tests;
use crate::kit::{World, finish, random_name};

pub(crate) fn add(tests: &mut Tests) {
    tests.add("doctor::a_deployment_that_is_well", well);
    tests.add("doctor::a_server_that_cannot_be_reached", away);
    tests.add("doctor::a_ttl_that_is_too_short", short_ttl);
    tests.add("doctor::an_index_that_removes_records", foreign_index);
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
}

async fn away(world: World) {
    let uri = "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=300";
    let findings = finish(world.command_on(uri, &["doctor"])).await.expect(1).objects();
    assert_eq!((&findings[0]["check"], &findings[0]["verdict"]), (&"connection".into(), &"wrong".into()));
    assert!(findings[0]["advice"].is_string() && findings.len() == 1, "{findings:?}");
    let findings = finish(world.command_on("mongodb://host:port", &["doctor"])).await.expect(1).objects();
    assert_eq!(findings[0]["verdict"], "wrong", "{findings:?}");
    // The other commands have the exit codes of these errors.
    finish(world.command_on(uri, &["ls"])).await.expect(69);
    finish(world.command_on(uri, &["run", "k", "--", "true"])).await.expect(69);
    finish(world.command_on("mongodb://host:port", &["ls"])).await.expect(78);
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
