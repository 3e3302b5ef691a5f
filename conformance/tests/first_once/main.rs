//! The first store of work that is done once keeps the clauses of the tutorial.

mod provider;
mod store;

use std::sync::Arc;
use std::time::Duration;

use distlock_api::Capabilities;
use distlock_conformance::{Client, Fixture, FixtureError, Need, Outcome, Profile, async_trait, examine};
use distlock_recipes::once::OnceProvider;

use provider::MyOnce;
use store::MyStore;

struct Mine(MyStore);

#[async_trait]
impl Fixture for Mine {
    fn name(&self) -> &str {
        "mine"
    }

    fn profile(&self) -> Profile {
        let mut promised = Capabilities::default();
        promised.expiry = true;
        Profile::new(promised).ttl(Duration::from_secs(1)).once()
    }

    async fn clients(&self, count: usize) -> Result<Vec<Client>, FixtureError> {
        Ok((0..count).map(|_| Client::of_store(self.0.clone())).collect())
    }

    async fn once_clients(&self, count: usize) -> Result<Vec<Arc<dyn OnceProvider>>, FixtureError> {
        Ok((0..count).map(|_| Arc::new(MyOnce::new(self.0.clone())) as Arc<dyn OnceProvider>).collect())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_keeps_the_clauses() {
    let report = examine(Mine(MyStore::open()), |check| check.needs().contains(&Need::Once)).await;
    let mut passed = 0;
    for (check, outcome) in report.outcomes() {
        match outcome {
            Outcome::Passed => passed += 1,
            // Without a deployment for fault injection.
            Outcome::Refused(_) => {}
            failed => panic!("{check}: {failed:?}"),
        }
    }
    assert!(passed >= 20, "{passed} checks have passed");
}

const TUTORIAL: &str = include_str!("../../TUTORIAL.md");

#[test]
fn the_tutorial_quotes_it() {
    let (_, part) = TUTORIAL.split_once("\n## 16. Work that is done once\n").expect("the heading of this example");
    let (part, _) = part.split_once("\n## 17. ").expect("the heading after this example");
    let (store, provider) = (include_str!("store.rs"), include_str!("provider.rs"));
    let mut compared = 0;
    for block in part.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()) {
        let files = [store, provider, include_str!("main.rs")];
        assert!(files.iter().any(|file| file.contains(block.trim_end())), "in no file:\n{block}");
        compared += 1;
    }
    assert!(compared >= 6, "no more than {compared} pieces of code");
    let [store, provider] = [store, provider].map(|file| file.lines().count());
    let counts = format!("{store} lines are the store, and {provider} lines the provider");
    let text: Vec<&str> = part.split_whitespace().collect();
    assert!(text.join(" ").contains(&counts), "{counts}");
}
