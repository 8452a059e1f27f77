//! The protocol: what is offered, and the caller.

use std::sync::Arc;

use rmcp::ServerHandler;
use rmcp::model::*;
use rmcp::service::{RequestContext, RoleServer};
use serde_json::Value;

use crate::problem::Problem;
use crate::resources;
use crate::scope::Scope;
use crate::tools;

/// A server for one client.
#[derive(Clone)]
pub struct Server {
    scope: Arc<Scope>,
}

impl Server {
    pub fn new(scope: Arc<Scope>) -> Server {
        Server { scope }
    }

    fn described(&self, tool: &tools::Tool) -> Tool {
        Tool::new(tool.name, tool.about, Arc::new(tool.input(&self.scope)))
            .with_raw_output_schema(Arc::new((tool.output)()))
            .with_annotations(ToolAnnotations::new().read_only(tool.is_read_only))
    }

    fn failed(&self, problem: &Problem) -> CallToolResult {
        problem.log();
        let mut result = CallToolResult::error(vec![ContentBlock::text(problem.text(self.scope.is_local))]);
        // In addition to the text for an LLM.
        result.meta.get_or_insert_default().insert("code".to_owned(), problem.code().into());
        result
    }

    fn refused(&self, problem: &Problem) -> ErrorData {
        problem.log();
        let code = serde_json::json!({ "code": problem.code() });
        ErrorData::resource_not_found(problem.text(self.scope.is_local), Some(code))
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        let own = Implementation::new("thread", env!("CARGO_PKG_VERSION"));
        ServerConfig::new(capabilities).with_server_info(own)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = tools::tools(&self.scope).map(|tool| self.described(tool)).collect();
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        match tools::call(&self.scope, &request.name, arguments, &context.ct).await {
            None => Err(ErrorData::invalid_params(format!("unknown tool: {}", request.name), None)),
            Some(Ok(result)) => Ok(CallToolResult::structured(Value::Object(result)).into()),
            Some(Err(problem)) => Ok(self.failed(&problem).into()),
        }
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let listed = resources::list(&self.scope).await.map_err(|problem| self.refused(&problem))?;
        Ok(ListResourcesResult::with_all_items(listed))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let template = ResourceTemplate::new(resources::TEMPLATE, "The last events of a session")
            .with_mime_type(resources::MIME);
        let has_sessions = self.scope.root.is_some();
        Ok(ListResourceTemplatesResult::with_all_items(
            has_sessions.then_some(template).into_iter().collect(),
        ))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let text = resources::read(&self.scope, request.uri.clone()).await;
        let text = text.map_err(|problem| self.refused(&problem))?;
        let contents = ResourceContents::text(text, request.uri).with_mime_type(resources::MIME);
        Ok(ReadResourceResult::new(vec![contents]).into())
    }
}
