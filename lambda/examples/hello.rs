//! What a function costs that does nothing: the yardstick of `cargo xtask bench coldstart`. The same runtime,
//! the same clients, the same profile; no configuration, no policy, nothing on the network.

use backplane::aws::{Aws, DynamoStore, SqsSender};
use lambda::environment::Environment;
use lambda::run::Function;
use serde_json::{Value, json};

struct Hello {
    _clients: (DynamoStore, SqsSender, aws_sdk_secretsmanager::Client),
}

impl Function for Hello {
    async fn start(environment: &Environment) -> anyhow::Result<Self> {
        let aws = Aws::connect(&environment.connection()).await?;
        let secrets = aws_sdk_secretsmanager::Client::new(aws.sdk_config());
        Ok(Self {
            _clients: (
                DynamoStore::new(&aws, &environment.table),
                SqsSender::new(&aws, environment.queues()),
                secrets,
            ),
        })
    }

    async fn handle(&mut self, _: &Value) -> anyhow::Result<Value> {
        Ok(json!({"statusCode": 200, "body": "hello"}))
    }
}

fn main() -> anyhow::Result<()> {
    lambda::run::run::<Hello>()
}
