/** The queues of one GPU host, and the policy that its agent needs: infra/host.yaml. */
import { join } from 'path';
import { CfnInclude } from 'aws-cdk-lib/cloudformation-include';
import { Construct } from 'constructs';
import { GpuhookStack } from './gpuhook-stack';
import { given } from './templates';

/** What a host can be told. */
export interface GpuHostProps {
  /** The installation that it belongs to. */
  readonly installation: GpuhookStack;
  /** The host's name. */
  readonly host: string;
  /** Who else may send to it: who rotates keys. */
  readonly operatorArn?: string;
  /** SNS topic that alarms go to. */
  readonly alarmTopicArn?: string;
}

/** The queues of one GPU host. `gpuhook host add` registers its key, and finds the queues there. */
export class GpuHost extends Construct {
  /** Where its agent takes commands. */
  readonly commandsQueueUrl: string;
  /** All that its agent may do. */
  readonly agentPolicyArn: string;

  constructor(scope: Construct, id: string, props: GpuHostProps) {
    super(scope, id);
    const installation = props.installation;
    const template = new CfnInclude(this, 'Template', {
      templateFile: join(installation.checkout, 'infra', 'host.yaml'),
      // A stack may hold many hosts.
      preserveLogicalIds: false,
      parameters: given({
        Prefix: installation.prefix,
        Host: props.host,
        WebhookRoleArn: installation.webhookRoleArn,
        SweepRoleArn: installation.sweepRoleArn,
        OperatorArn: props.operatorArn,
        AlarmTopicArn: props.alarmTopicArn,
      }),
    });
    this.commandsQueueUrl = template.getResource('Commands').ref;
    this.agentPolicyArn = template.getResource('AgentPolicy').ref;
  }
}
