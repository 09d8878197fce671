use tenure::{TaskError, Tenure, port::NewTask};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tenure = Tenure::open("sqlite:tenure.db").await?; // or postgres://…
    let mail = tenure.queue("mail")?;
    let ada = NewTask { payload: r#"{"to":"ada"}"#.parse()?, ..NewTask::new("welcome") };
    tenure.tasks().submit(&mail, vec![ada]).await?;

    let worker = tenure
        .worker("mail")
        .concurrency(8)
        .kind("welcome", |task| async move {
            let letter: serde_json::Value = task.payload()?;
            println!("welcome {}, under token {}", letter["to"], task.token());
            Ok::<_, TaskError>("sent") // the task's result; an error is retried
        })
        .start()
        .await?;

    tokio::signal::ctrl_c().await?;
    worker.drain().await?; // finishes tasks in progress
    Ok(tenure.close().await?)
}
