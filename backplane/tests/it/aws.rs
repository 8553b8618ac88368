//! SQS and DynamoDB as a third party has them: rustack, served in this process on a loopback port, or
//! whatever emulator `GPUHOOK_TEST_AWS_ENDPOINT` names.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, GlobalSecondaryIndex, KeySchemaElement, KeyType,
    Projection, ProjectionType, ScalarAttributeType,
};
use aws_sdk_sqs::types::QueueAttributeName;
use backplane::aws::{Aws, Connection, DynamoStore, QueueUrls, SqsReceiver, SqsSender};
use backplane::queue::{DEFAULT_VISIBILITY, MAX_BODY, MAX_RECEIVES};
use http_body_util::BodyExt;
use http_body_util::combinators::BoxBody;
use hyper::body::{Bytes, Incoming};
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustack_dynamodb_core::config::DynamoDBConfig;
use rustack_dynamodb_core::handler::RustackDynamoDBHandler;
use rustack_dynamodb_core::provider::RustackDynamoDB;
use rustack_dynamodb_http::service::DynamoDBHttpService;
use rustack_sqs_core::config::SqsConfig;
use rustack_sqs_core::handler::RustackSqsHandler;
use rustack_sqs_core::provider::RustackSqs;
use rustack_sqs_http::service::SqsHttpService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::implementation::{Backplane, ManualClock, QueueTime};
use crate::queue::HASTY;

/// Hosts that any case sends to.
const HOSTS: [&str; 3] = ["t4", "t4-2", HASTY];

/// What becomes of a request to the emulator.
#[derive(Debug, Clone)]
pub(crate) enum Fate {
    /// It is answered.
    Answered,
    /// It is done, and the answer is lost with its connection.
    Lost,
    /// It is not done, and answered with this status and error code.
    Refused(u16, &'static str),
    /// It is not done, and never answered.
    Silent,
    /// It waits until this has a permit.
    Held(Arc<Semaphore>),
}

/// Decides by the name of the call.
pub(crate) type Fates = Arc<dyn Fn(&str) -> Fate + Send + Sync>;

/// Serves SQS and DynamoDB on a loopback port until the runtime ends.
pub(crate) async fn emulator(fates: Fates) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let queues = SqsConfig {
        host: "127.0.0.1".to_owned(),
        port: address.port(),
        ..SqsConfig::default()
    };
    let queues = RustackSqsHandler::new(Arc::new(RustackSqs::new(queues)));
    let queues = SqsHttpService::new(Arc::new(queues), Default::default());
    let tables = Arc::new(RustackDynamoDB::new(DynamoDBConfig::default()));
    let tables = Arc::new(RustackDynamoDBHandler::new(tables));
    let tables = DynamoDBHttpService::new(tables, Default::default());
    tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                return;
            };
            let (queues, tables, fates) = (queues.clone(), tables.clone(), fates.clone());
            let service = service_fn(move |request: Request<Incoming>| {
                let (queues, tables, fates) = (queues.clone(), tables.clone(), fates.clone());
                async move {
                    let target = request.headers().get("x-amz-target");
                    let target = target
                        .and_then(|target| target.to_str().ok())
                        .unwrap_or_default();
                    let call = target.rsplit('.').next().unwrap_or_default().to_owned();
                    match fates(&call) {
                        Fate::Answered => Ok(answer(&queues, &tables, request).await),
                        Fate::Lost => {
                            answer(&queues, &tables, request).await;
                            Err("the answer is lost")
                        }
                        Fate::Refused(status, code) => Ok(refusal(status, code)),
                        Fate::Silent => std::future::pending().await,
                        Fate::Held(gate) => {
                            gate.acquire().await.unwrap().forget();
                            Ok(answer(&queues, &tables, request).await)
                        }
                    }
                }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            tokio::spawn(connection);
        }
    });
    format!("http://{address}")
}

fn refusal(status: u16, code: &str) -> Response<BoxBody<Bytes, Infallible>> {
    let body = format!(r#"{{"__type":"com.amazonaws#{code}","message":"as the test wants it"}}"#);
    Response::builder()
        .status(status)
        .header("content-type", "application/x-amz-json-1.0")
        .body(http_body_util::Full::from(body).boxed())
        .unwrap()
}

async fn answer(
    queues: &SqsHttpService<RustackSqsHandler>,
    tables: &DynamoDBHttpService<RustackDynamoDBHandler>,
    request: Request<Incoming>,
) -> Response<BoxBody<Bytes, Infallible>> {
    let target = request.headers().get("x-amz-target");
    let is_table = target.is_some_and(|target| target.as_bytes().starts_with(b"DynamoDB"));
    if is_table {
        let Ok(response) = tables.call(request).await;
        whole(response).await
    } else {
        let Ok(response) = queues.call(request).await;
        whole(response).await
    }
}

async fn whole<B>(response: Response<B>) -> Response<BoxBody<Bytes, Infallible>>
where
    B: hyper::body::Body,
    B::Error: std::fmt::Debug,
{
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    Response::from_parts(parts, http_body_util::Full::new(bytes).boxed())
}

/// A connection to an emulator.
pub(crate) async fn connect(endpoint: &str) -> Aws {
    let connection = Connection {
        region: Some("us-east-1".to_owned()),
        endpoint: Some(endpoint.to_owned()),
        emulator_keys: Some(["test".to_owned(), "test".to_owned()]),
        ..Connection::default()
    };
    Aws::connect(&connection).await.unwrap()
}

/// Clients that make what a deployment makes.
struct Deployer {
    tables: aws_sdk_dynamodb::Client,
    queues: aws_sdk_sqs::Client,
}

/// A fresh installation in the emulator that is asked for.
pub(crate) async fn backplane() -> Backplane {
    // Every test process runs one case; nobody reads the environment at the same time.
    let endpoint = match std::env::var("GPUHOOK_TEST_AWS_ENDPOINT") {
        Ok(endpoint) => endpoint,
        Err(_) => emulator(Arc::new(|_| Fate::Answered)).await,
    };
    installation(&endpoint).await
}

/// A fresh installation at an endpoint.
pub(crate) async fn installation(endpoint: &str) -> Backplane {
    store_and_installation(endpoint).await.1
}

/// A fresh installation at an endpoint, with what only operators do with its store.
pub(crate) async fn store_and_installation(endpoint: &str) -> (Arc<DynamoStore>, Backplane) {
    let prefix = format!("g{}", &Uuid::now_v7().simple().to_string()[20..]);
    let deployer = Deployer::new(endpoint);
    deployer.table(&prefix).await;
    for host in HOSTS {
        deployer.commands(&prefix, host).await;
    }
    deployer
        .queue(&format!("{prefix}-results"), HashMap::new())
        .await;
    let aws = connect(endpoint).await;
    let urls = QueueUrls::Installation {
        base: format!("{endpoint}/000000000000/"),
        prefix: prefix.clone(),
    };
    let store = Arc::new(DynamoStore::new(&aws, prefix));
    let sender = Arc::new(SqsSender::new(&aws, urls.clone()));
    let backplane = Backplane {
        store: store.clone(),
        reads: store.clone(),
        sender,
        receiver: Box::new(move |queue| Arc::new(SqsReceiver::new(&aws, urls.of(queue)))),
        clock: ManualClock::start(),
        queue_time: QueueTime::ItsOwn,
        _kept: Box::new(()),
    };
    (store, backplane)
}

/// Sets an attribute of an item of the only installation at an endpoint, behind everybody's back.
pub(crate) async fn overwrite(endpoint: &str, pk: &str, attribute: &str, value: &str) {
    let tables = Deployer::new(endpoint).tables;
    let table = tables
        .list_tables()
        .send()
        .await
        .unwrap()
        .table_names
        .unwrap()
        .remove(0);
    let text = |value: &str| AttributeValue::S(value.to_owned());
    tables
        .update_item()
        .table_name(table)
        .key("pk", text(pk))
        .key("sk", text("-"))
        .update_expression("SET #a = :value")
        .expression_attribute_names("#a", attribute)
        .expression_attribute_values(":value", text(value))
        .send()
        .await
        .unwrap();
}

impl Deployer {
    fn new(endpoint: &str) -> Self {
        let keys = aws_sdk_sqs::config::Credentials::new("test", "test", None, None, "test");
        let shared = aws_config::SdkConfig::builder()
            .behavior_version(aws_config::BehaviorVersion::latest())
            .region(aws_config::Region::new("us-east-1"))
            .endpoint_url(endpoint)
            .http_client(aws_smithy_http_client::Builder::new().build_http())
            .credentials_provider(aws_sdk_sqs::config::SharedCredentialsProvider::new(keys))
            .build();
        Self {
            tables: aws_sdk_dynamodb::Client::new(&shared),
            queues: aws_sdk_sqs::Client::new(&shared),
        }
    }

    async fn table(&self, name: &str) {
        let attribute = |name: &str, kind: ScalarAttributeType| {
            AttributeDefinition::builder()
                .attribute_name(name)
                .attribute_type(kind)
                .build()
                .unwrap()
        };
        let mut create = self
            .tables
            .create_table()
            .table_name(name)
            .billing_mode(aws_sdk_dynamodb::types::BillingMode::PayPerRequest)
            .set_key_schema(Some(keys("pk", "sk")))
            .attribute_definitions(attribute("pk", ScalarAttributeType::S))
            .attribute_definitions(attribute("sk", ScalarAttributeType::S))
            .attribute_definitions(attribute("due_pk", ScalarAttributeType::S))
            .attribute_definitions(attribute("due_at", ScalarAttributeType::N));
        for (index, hash, range) in [
            ("by_tenant", "tenant_pk", "tenant_sk"),
            ("by_host", "host_pk", "host_sk"),
            ("due", "due_pk", "due_at"),
        ] {
            if index != "due" {
                create = create
                    .attribute_definitions(attribute(hash, ScalarAttributeType::S))
                    .attribute_definitions(attribute(range, ScalarAttributeType::S));
            }
            let projection = Projection::builder()
                .projection_type(ProjectionType::All)
                .build();
            create = create.global_secondary_indexes(
                GlobalSecondaryIndex::builder()
                    .index_name(index)
                    .set_key_schema(Some(keys(hash, range)))
                    .projection(projection)
                    .build()
                    .unwrap(),
            );
        }
        create.send().await.unwrap();
    }

    async fn commands(&self, prefix: &str, host: &str) {
        use QueueAttributeName as Name;
        let fifo = || {
            HashMap::from([
                (Name::FifoQueue, "true".to_owned()),
                (Name::DeduplicationScope, "messageGroup".to_owned()),
                (Name::FifoThroughputLimit, "perMessageGroupId".to_owned()),
            ])
        };
        let dead = self
            .queue(&format!("{prefix}-cmd-{host}-dlq.fifo"), fifo())
            .await;
        let arn = self.queues.get_queue_attributes().queue_url(dead);
        let arn = arn.attribute_names(Name::QueueArn).send().await.unwrap();
        let arn = arn.attributes.unwrap().remove(&Name::QueueArn).unwrap();
        let mut attributes = fifo();
        let redrive =
            format!(r#"{{"deadLetterTargetArn":"{arn}","maxReceiveCount":{MAX_RECEIVES}}}"#);
        attributes.insert(Name::RedrivePolicy, redrive);
        let visibility_s = if host == HASTY {
            1
        } else {
            DEFAULT_VISIBILITY.as_secs()
        };
        attributes.insert(Name::VisibilityTimeout, visibility_s.to_string());
        attributes.insert(Name::MaximumMessageSize, MAX_BODY.to_string());
        self.queue(&format!("{prefix}-cmd-{host}.fifo"), attributes)
            .await;
    }

    async fn queue(&self, name: &str, attributes: HashMap<QueueAttributeName, String>) -> String {
        let create = self.queues.create_queue().queue_name(name);
        let created = create
            .set_attributes(Some(attributes))
            .send()
            .await
            .unwrap();
        created.queue_url.unwrap()
    }
}

fn keys(hash: &str, range: &str) -> Vec<KeySchemaElement> {
    let key = |name: &str, kind: KeyType| {
        KeySchemaElement::builder()
            .attribute_name(name)
            .key_type(kind)
            .build()
            .unwrap()
    };
    vec![key(hash, KeyType::Hash), key(range, KeyType::Range)]
}
