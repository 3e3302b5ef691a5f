//! What the client's user may do, found out by asking for it.

use distlock_api::Result;
use mongodb::bson::{Document, doc};

use crate::budget::Budget;
use crate::error::{NOT_IN_AN_UPSERT, command_code, lacks};
use crate::store::{Absent, MongoStore};

impl MongoStore {
    /// Tries what each lock needs, in ways that find and change nothing.
    ///
    /// # Errors
    /// [`PermissionDenied`](distlock_api::ErrorKind::PermissionDenied) that names the privilege.
    pub(crate) async fn check_privileges(&self, budget: Budget) -> Result<()> {
        let nothing = || doc! { "_id": { "$in": [] } };
        let find = async { self.records.find_one(nothing()).max_time(budget.on_server()).await };
        self.probe("find", budget, async { find.await.map(drop) }).await?;
        let update = doc! { "query": nothing(), "upsert": false };
        self.probe("update", budget, self.change_nothing(update, budget)).await?;
        if matches!(self.absent, Absent::Nothing) {
            return Ok(());
        }
        // An upsert that the server refuses, but only to those who may make one.
        let upsert = doc! { "query": { "$expr": true }, "upsert": true };
        let refused = async {
            match self.change_nothing(upsert, budget).await {
                Err(error) if command_code(&error) == Some(NOT_IN_AN_UPSERT) => Ok(()),
                other => other,
            }
        };
        self.probe("insert", budget, refused).await
    }

    async fn change_nothing(&self, how: Document, budget: Budget) -> mongodb::error::Result<()> {
        let mut command = doc! { "findAndModify": self.records.name(), "update": [{ "$set": {} }] };
        command.extend(how);
        command.insert("maxTimeMS", budget.max_time_ms());
        self.database.run_command(command).await.map(drop)
    }

    async fn probe(
        &self,
        privilege: &str,
        budget: Budget,
        call: impl Future<Output = mongodb::error::Result<()>>,
    ) -> Result<()> {
        let answer = self.attempt(budget, crate::error::Effect::None, call).await?;
        answer.map_err(|error| lacks(privilege, &self.records.namespace().to_string(), &error))
    }
}
