//! A session that the editor has open: a place in the gateway's session, and the prompts that wait for an end.

use std::collections::BTreeSet;
use std::ops::ControlFlow::{self, Break, Continue};

use agent_client_protocol_schema::v1::{
    CloseSessionResponse, Error, PromptResponse, SessionUpdate, SetSessionConfigOptionResponse,
    SetSessionModeResponse, StopReason,
};
use serde_json::Value;
use thread_protocol::client::{Client, Error as Failure, Received};
use thread_protocol::event::{ErrorCode, Event, Role, RunStatus};
use thread_protocol::method::{
    Agent, AgentCancel, AgentParams, CancelParams, PermissionAnswer, PermissionAnswerParams, SessionsUpdate,
    Switched,
};
use thread_protocol::{Content, Frame, code};
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::choices::Choices;
use crate::content::to_send;
use crate::editor::Editor;
use crate::orders::{Chosen, Order};
use crate::permissions::Permissions;
use crate::problem::{self, Problems};
use crate::updates::{Ending, Transcript};

pub struct Session {
    pub id: String,
    client: Client,
    problems: Problems,
    editor: Editor,
    choices: Choices,
    transcript: Transcript,
    permissions: Permissions,
    /// Prompts without a response.
    turns: Vec<Turn>,
    /// The run under way, no matter who began it.
    active: Option<String>,
    /// What happens from now on is news to the editor, after what it was told when the session was opened.
    is_shown: bool,
}

/// A prompt.
struct Turn {
    /// The editor's request.
    request: Value,
    /// `None` if it is a command, which the gateway answers itself.
    run: Option<String>,
    is_cancelled: bool,
}

impl Session {
    pub fn new(id: String, client: Client, problems: Problems, editor: Editor) -> Session {
        Session {
            id,
            client,
            problems,
            editor,
            choices: Choices::default(),
            transcript: Transcript::default(),
            permissions: Permissions::default(),
            turns: Vec::new(),
            active: None,
            is_shown: false,
        }
    }

    /// The session as it is now, with what can be chosen in it.
    pub fn with(self, choices: Choices) -> Session {
        Session { choices, is_shown: true, ..self }
    }

    /// Shows the whole session up to now, and returns what the gateway says about it.
    ///
    /// # Errors
    ///
    /// There is no such session, or it cannot be read to its end.
    pub async fn replay(&mut self) -> Result<Switched, Error> {
        self.client.enter(&self.id, 0).await;
        loop {
            match self.client.receive().await {
                Ok(Received::Entered(switched)) => return Ok(*switched),
                Ok(received) => drop(self.received(received).await),
                Err(e) => return Err(self.problems.of(&e)),
            }
        }
    }

    /// Lives until the session is closed, deleted, or opened again.
    pub async fn run(mut self, mut orders: mpsc::Receiver<Order>, answers: mpsc::WeakSender<Order>) {
        // After a failure, the gateway is tried again when there is something to do.
        let mut hears = true;
        loop {
            let went_on = tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => {
                        hears = true;
                        self.obey(order).await
                    }
                    None => Break(self.problems.closed()),
                },
                received = self.client.receive(), if hears => match received {
                    Ok(received) => self.received(received).await,
                    Err(e) => {
                        hears = false;
                        let problem = self.problems.of(&e);
                        problem::note(&problem);
                        match e {
                            Failure::Refused(_) => Break(problem),
                            _ => {
                                self.give_up(&problem).await;
                                Continue(())
                            }
                        }
                    }
                },
            };
            if let Break(why) = went_on {
                self.give_up(&why).await;
                orders.close();
                while let Some(order) = orders.recv().await {
                    if let Some(id) = order.request() {
                        self.editor.respond(id, Err::<(), _>(why.clone())).await;
                    }
                }
                return;
            }
            self.ask(&answers).await;
        }
    }

    /// Answers all prompts that wait: their ends will not be heard.
    async fn give_up(&mut self, why: &Error) {
        for turn in std::mem::take(&mut self.turns) {
            turn.respond(&self.editor, Err(why.clone())).await;
        }
    }

    async fn update(&self, updates: impl IntoIterator<Item = SessionUpdate>) {
        for update in updates {
            self.editor.update(&self.id, update).await;
        }
    }

    async fn obey(&mut self, order: Order) -> ControlFlow<Error> {
        match order {
            Order::Prompt { id, content } => self.prompt(id, content).await,
            Order::Cancel => self.cancel(|_| true).await,
            Order::CancelRequest { id } => {
                if self.turns.iter().any(|turn| turn.request == id) {
                    self.cancel(|turn| turn.request == id).await;
                }
            }
            Order::Choose { id, chosen } => self.choose(id, *chosen).await,
            Order::Answer { request_id, choice } => self.permit(request_id, choice).await,
            Order::Close { id } => {
                self.cancel(|_| true).await;
                self.editor.respond(&id, Ok(CloseSessionResponse::new())).await;
                return Break(self.problems.closed());
            }
        }
        Continue(())
    }

    /// Sends a prompt. By its idempotency key it is stored once, even if it is sent again.
    async fn prompt(&mut self, request: Value, content: Content) {
        let content = match content {
            Content::Text(text) => Content::Text(to_send(text).0),
            parts => parts,
        };
        let params = AgentParams {
            session_id: Some(self.id.clone()),
            message: content,
            priority: None,
            metadata: None,
            idempotency_key: Some(Uuid::new_v4().to_string()),
            at: None,
        };
        match self.client.call::<Agent>(&params).await {
            Ok(accepted) => {
                self.turns.push(Turn { request, run: accepted.run_id, is_cancelled: false });
                self.permissions.ask_again();
            }
            Err(e) => self.editor.respond(&request, Err::<(), _>(self.problems.of(&e))).await,
        }
    }

    /// Cancels prompts, and what is under way before them: people see both as one.
    async fn cancel(&mut self, is_meant: impl Fn(&Turn) -> bool) {
        let mut runs: BTreeSet<String> = self.active.iter().cloned().collect();
        for turn in self.turns.iter_mut().filter(|turn| is_meant(turn)) {
            turn.is_cancelled = true;
            runs.extend(turn.run.clone());
        }
        for run_id in runs {
            let params = CancelParams { run_id, session_id: Some(self.id.clone()) };
            match self.client.call::<AgentCancel>(&params).await {
                // It is over, and its end is on its way.
                Err(Failure::Refused(why)) if why.code == code::UNKNOWN_RUN => {}
                Err(e) => problem::note(&self.problems.of(&e)),
                Ok(_) => {}
            }
        }
    }

    async fn choose(&mut self, id: Value, chosen: Chosen) {
        let Some(params) = self.choices.meant(&self.id, &chosen) else {
            let what = match &chosen {
                Chosen::Mode(mode) => format!("the session has no mode '{mode}'"),
                Chosen::Option { id, value } => {
                    format!("the session has no option '{id}' that can be '{value}'")
                }
            };
            return self.editor.respond(&id, Err::<(), _>(Error::new(-32602, what))).await;
        };
        match self.client.call::<SessionsUpdate>(&params).await {
            Ok(updated) => {
                let updates = self.choices.updated(&updated);
                self.update(updates).await;
                match chosen {
                    Chosen::Mode(_) => self.editor.respond(&id, Ok(SetSessionModeResponse::new())).await,
                    Chosen::Option { .. } => {
                        let options = self.choices.options().unwrap_or_default();
                        self.editor.respond(&id, Ok(SetSessionConfigOptionResponse::new(options))).await;
                    }
                }
            }
            Err(e) => self.editor.respond(&id, Err::<(), _>(self.problems.of(&e))).await,
        }
    }

    /// Passes the editor's answer on to the agent.
    async fn permit(&mut self, request_id: String, choice: Option<String>) {
        let is_awaited = self.permissions.answered(&request_id, choice.is_some());
        let Some(choice) = choice.filter(|_| is_awaited) else { return };
        let params =
            PermissionAnswerParams { session_id: self.id.clone(), request_id: request_id.clone(), choice };
        match self.client.call::<PermissionAnswer>(&params).await {
            // Somebody else was first, or the run is over.
            Err(Failure::Refused(why)) if why.code == code::UNKNOWN_PERMISSION => {}
            Err(e) => {
                self.permissions.answered(&request_id, false);
                problem::note(&self.problems.of(&e));
            }
            Ok(_) => {}
        }
    }

    /// Asks for the permissions that are waited for, if the editor has a prompt under way.
    async fn ask(&mut self, answers: &mpsc::WeakSender<Order>) {
        while !self.turns.is_empty()
            && let Some((request_id, request)) = self.permissions.next(&self.id)
        {
            let id = self.editor.ask(request, answers.clone(), request_id.clone()).await;
            self.permissions.asked(&request_id, id);
        }
    }

    async fn received(&mut self, received: Received) -> ControlFlow<Error> {
        match received {
            Received::Event(frame, _) => return self.event(&frame).await,
            Received::Lost(why) => {
                eprintln!("thread acp: the connection was lost ({why}); connecting again");
            }
            Received::Unreadable(error) => {
                eprintln!("thread acp: {error}");
                let ends = ["final", "error", "cancelled"];
                if ends.iter().any(|end| error.event.as_deref() == Some(end)) {
                    // Nothing may follow. Better an end too early than to wait for ever.
                    let ending = Ending::Failed(error.to_string());
                    self.ended(error.run_id.as_deref(), ending).await;
                }
            }
            Received::Unknown(_) | Received::Entered(_) => {}
        }
        Continue(())
    }

    async fn event(&mut self, frame: &Frame) -> ControlFlow<Error> {
        if let Event::Error(error) = &frame.event
            && error.error_code == ErrorCode::SessionDeleted
        {
            return Break(self.problems.unknown_session(&self.id));
        }
        if self.is_shown {
            let updates = self.choices.apply(&frame.event);
            self.update(updates).await;
        }
        let updates = self.transcript.apply(frame);
        self.update(updates).await;
        for id in self.permissions.apply(frame) {
            self.editor.withdraw(id).await;
        }
        match &frame.event {
            Event::Status(status) if status.status == RunStatus::Started => {
                self.active.clone_from(&frame.run_id);
            }
            // The answer to a command is stored nowhere.
            Event::Message(message) if message.role == Role::System && frame.seq.is_none() => {
                self.ended(None, Ending::Answered(StopReason::EndTurn, None)).await;
            }
            _ => {}
        }
        if let Some(ending) = Ending::of(&frame.event) {
            if self.active == frame.run_id {
                self.active = None;
            }
            self.ended(frame.run_id.as_deref(), ending).await;
        }
        Continue(())
    }

    /// Answers the prompt whose run this is, if it is one of this editor's.
    async fn ended(&mut self, run: Option<&str>, ending: Ending) {
        let Some(at) = self.turns.iter().position(|turn| turn.run.as_deref() == run) else { return };
        let turn = self.turns.remove(at);
        let response = match ending {
            Ending::Answered(reason, usage) => Ok(PromptResponse::new(reason).usage(usage)),
            Ending::Cancelled => Ok(PromptResponse::new(StopReason::Cancelled)),
            Ending::Failed(why) => Err(Error::new(-32603, why)),
        };
        turn.respond(&self.editor, response).await;
    }

    /// The commands that people have in it.
    pub fn commands(&self) -> SessionUpdate {
        self.transcript.commands()
    }

    /// The run that is under way, where the beginning of that was not shown.
    pub fn is_active(&mut self, run: Option<String>) {
        self.active = run;
    }
}

impl Turn {
    async fn respond(self, editor: &Editor, response: Result<PromptResponse, Error>) {
        // Whatever came of it, as the protocol wants it.
        let cancelled = self.is_cancelled.then(|| Ok(PromptResponse::new(StopReason::Cancelled)));
        editor.respond(&self.request, cancelled.unwrap_or(response)).await;
    }
}
