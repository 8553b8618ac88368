/** One installation of gpuhook: template.yaml, with the functions' code from assets. */
import { existsSync } from 'fs';
import { join } from 'path';
import { Stack, StackProps } from 'aws-cdk-lib';
import { CfnInclude } from 'aws-cdk-lib/cloudformation-include';
import { Asset } from 'aws-cdk-lib/aws-s3-assets';
import { CfnFunction } from 'aws-cdk-lib/aws-sam';
import { Construct } from 'constructs';
import { checkout, given } from './templates';

/** Functions of template.yaml, by the program that each runs. */
const FUNCTIONS = {
  webhook: 'WebhookFunction',
  results: 'ResultsFunction',
  deliver: 'DeliverFunction',
  sweep: 'SweepFunction',
};

/** What an installation can be told. Whatever is left out is as template.yaml has it. */
export interface GpuhookStackProps extends StackProps {
  /** What every name begins with. */
  readonly prefix?: string;
  /** What the functions were built for. */
  readonly architecture?: 'arm64' | 'x86_64';
  /** Whose certificates the functions trust AWS endpoints by. */
  readonly trustedRoots?: 'amazon' | 'native';
  /** Days that logs are kept. */
  readonly logRetentionDays?: number;
  /** Requests a second that the API lets through. */
  readonly throttleRate?: number;
  /** Requests at once that the API lets through. */
  readonly throttleBurst?: number;
  /** SNS topic that alarms go to. */
  readonly alarmTopicArn?: string;
  /** Folder of the functions' programs, as `cargo lambda build` leaves it: NAME/bootstrap. `target/lambda` of the checkout if left out. */
  readonly programs?: string;
  /** A checkout of gpuhook; the one that this file is in if left out. */
  readonly checkout?: string;
}

/** One installation of gpuhook. */
export class GpuhookStack extends Stack {
  /** The prefix that its hosts have to have too. */
  readonly prefix: string;
  /** Role of the front door, which sends commands. */
  readonly webhookRoleArn: string;
  /** Role of the sweep, which sends what was left unsent. */
  readonly sweepRoleArn: string;
  /** Where its templates are. */
  readonly checkout: string;
  /** Everything in template.yaml, for whoever has to change a detail. */
  readonly template: CfnInclude;

  constructor(scope: Construct, id: string, props: GpuhookStackProps = {}) {
    super(scope, id, props);
    this.checkout = props.checkout ?? checkout();
    this.prefix = props.prefix ?? 'gpuhook';
    this.template = new CfnInclude(this, 'Template', {
      templateFile: join(this.checkout, 'template.yaml'),
      parameters: given({
        Prefix: this.prefix,
        Architecture: props.architecture,
        TrustedRoots: props.trustedRoots,
        LogRetentionDays: props.logRetentionDays,
        ThrottleRate: props.throttleRate,
        ThrottleBurst: props.throttleBurst,
        AlarmTopicArn: props.alarmTopicArn,
      }),
    });
    const programs = props.programs ?? join(this.checkout, 'target', 'lambda');
    for (const [program, name] of Object.entries(FUNCTIONS)) {
      this.giveCode(name, join(programs, program));
    }
    this.webhookRoleArn = this.arn('WebhookRole');
    this.sweepRoleArn = this.arn('SweepRole');
  }

  private giveCode(name: string, folder: string): void {
    if (!existsSync(join(folder, 'bootstrap'))) {
      throw new Error(`${folder} has no bootstrap; build it with cargo lambda build --release --arm64 -p gpuhook-lambda`);
    }
    const asset = new Asset(this, `${name}Code`, { path: folder });
    const lambda = this.template.getResource(name) as CfnFunction;
    lambda.codeUri = { bucket: asset.s3BucketName, key: asset.s3ObjectKey };
  }

  private arn(role: string): string {
    return this.template.getResource(role).getAtt('Arn').toString();
  }
}
