/** An installation and its hosts as a CDK app: `cdk deploy --all -c hosts=gpu-01,gpu-02`. */
import { App, Stack } from 'aws-cdk-lib';
import { GpuHost, GpuhookStack } from '../lib';

const app = new App();
const told = (name: string): string | undefined => app.node.tryGetContext(name);

const installation = new GpuhookStack(app, told('stack') ?? 'gpuhook', {
  prefix: told('prefix'),
  architecture: told('architecture') as 'arm64' | 'x86_64' | undefined,
  alarmTopicArn: told('alarmTopicArn'),
  programs: told('programs'),
  checkout: told('checkout'),
});

const hosts = (told('hosts') ?? '').split(',').filter((host) => host !== '');
if (hosts.length > 0) {
  const stack = new Stack(app, `${installation.stackName}-hosts`);
  for (const host of hosts) {
    new GpuHost(stack, host, {
      installation,
      host,
      operatorArn: told('operatorArn'),
      alarmTopicArn: told('alarmTopicArn'),
    });
  }
}
